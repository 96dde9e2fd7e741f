"""How programs wait for one another that read what others wrote past the first-level cache."""

# pyright: reportArgumentType=false

import triton
import triton.language as tl


@triton.jit
def meet(counter, target, MEET: tl.constexpr):
    """Wait until the programs that share the counter have come here `target` times in all.

    What others wrote is then to be read by loads with `.cg`: what the first-level cache holds stays there, as tables that never change
    are to be read from it again. Without MEET a program works alone, and only its threads wait for one another.
    """
    tl.debug_barrier()
    if MEET:
        tl.atomic_add(counter, 1, sem="release")
        while tl.load(counter, volatile=True) < target:
            pass
        tl.debug_barrier()
