"""Covariances of states as free numbers: diagonal, spherical, full, or one for all states."""

import functools
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tailsum.hmm.given import given_numbers, not_below_zero
from tailsum.numerics.check import check_choice

Kind = Literal["diagonal", "full", "tied", "spherical"]
KINDS = ("diagonal", "full", "tied", "spherical")
LEAST = 1e-5  # of observations and prior ones: parameters with fewer stay as they are


class Covariance(nn.Module):
    """Covariances of d numbers in N states; the base class.

    Sums of products of errors have the shape of `gram`: the diagonals of matrices if features are independent, else the matrices.
    Variances stay above `floor`.
    """

    separate = True  # features are independent: some may be missing

    def __init__(self, n_states: int, d: int, prior: float | Tensor, weight: float, floor: float) -> None:
        super().__init__()
        self.n_states, self.d, self.prior, self.weight, self.floor = n_states, d, prior, weight, floor

    @abstractmethod
    def forward(self) -> Float[Tensor, "..."]:
        """The covariances, in the shape of their kind."""

    @abstractmethod
    def gram(self, a: Float[Tensor, "*rows d k"], b: Float[Tensor, "*rows d k"]) -> Float[Tensor, "*rows_d_more"]:
        """Products of features with features, added up over k."""

    @abstractmethod
    def whitened(self, errors: Float[Tensor, "*rows n d"]) -> Float[Tensor, "*rows n d"]:
        """Errors of each state, times the inverse of the root of its covariance."""

    @abstractmethod
    def coloured(self, noise: Float[Tensor, "rows d"], states: Int[Tensor, " rows"]) -> Float[Tensor, "rows d"]:
        """Standard normal noise, times the root of the covariance of some states."""

    @abstractmethod
    def log_scales(self) -> Float[Tensor, "n d"]:
        """Logarithms of the diagonal of the root: their sum is half the log-determinant."""

    @abstractmethod
    def maximise(self, scatter: Float[Tensor, "n d *more"], counts: Float[Tensor, "n d"]) -> None:
        """The covariances that fit best to the sums of products of errors, over so many observations of each feature."""

    @abstractmethod
    def log_prior(self) -> Float[Tensor, ""]:
        """The log-density under the prior, up to a constant."""

    @abstractmethod
    def start(self, matrix: Float[Tensor, "d d"]) -> None:
        """The same covariance for all states."""

    @property
    @abstractmethod
    def n_free(self) -> int:
        """How many numbers are free."""

    def product(self, a: Float[Tensor, "*#rows d"], b: Float[Tensor, "*#rows d"]) -> Float[Tensor, "*rows_d_more"]:
        """Products of the features of one with those of the other."""
        return self.gram(a[..., None], b[..., None])

    def log_density(self, errors: Float[Tensor, "rows n d"], seen: Bool[Tensor, "rows d"]) -> Float[Tensor, "rows n"]:
        """The log-density of errors with mean zero, of those features that were seen."""
        whitened = self.whitened(errors) * seen[:, None]
        scales = self.log_scales() + 0.5 * math.log(2 * math.pi)
        return -0.5 * whitened.square().sum(-1) - seen.to(scales) @ scales.mT


class Diagonal(Covariance):
    """Variances `[N, d]`, or `[N]` for all features of a state together."""

    def __init__(
        self,
        n_states: int,
        d: int,
        prior: float | Tensor,
        weight: float,
        floor: float,
        *,
        given: Float[Tensor, "..."] | None = None,
        spherical: bool = False,
    ) -> None:
        super().__init__(n_states, d, prior, weight, floor)
        self.spherical = spherical
        shape = (n_states,) if spherical else (n_states, d)
        given = given_numbers("covariances", given, shape)
        if given is None:
            given = torch.ones(shape)
        elif not bool((given > 0).all()):
            raise ValueError(f"covariances must be above 0: got {given.min().item()}")
        self.log_variances = nn.Parameter(given.log())

    def forward(self) -> Float[Tensor, "..."]:
        return self.log_variances.exp()

    def gram(self, a: Float[Tensor, "*rows d k"], b: Float[Tensor, "*rows d k"]) -> Float[Tensor, "*rows_d_more"]:
        return (a * b).sum(-1)

    def log_scales(self) -> Float[Tensor, "n d"]:
        return 0.5 * (self.log_variances[:, None] if self.spherical else self.log_variances).expand(-1, self.d)

    def whitened(self, errors: Float[Tensor, "*rows n d"]) -> Float[Tensor, "*rows n d"]:
        return errors * (-self.log_scales()).exp()

    def coloured(self, noise: Float[Tensor, "rows d"], states: Int[Tensor, " rows"]) -> Float[Tensor, "rows d"]:
        return noise * self.log_scales().exp()[states]

    def maximise(self, scatter: Float[Tensor, "n d *more"], counts: Float[Tensor, "n d"]) -> None:
        above, below = self._prior(scatter) + scatter, max(self.weight - 1.0, 0.0) + counts
        if self.spherical:
            above, below = above.sum(-1), below.sum(-1)
        fresh = (above / below.clamp(min=LEAST)).clamp(min=self.floor).log().to(self.log_variances.dtype)
        self.log_variances.data = torch.where(below >= LEAST, fresh, self.log_variances.detach())

    def log_prior(self) -> Float[Tensor, ""]:
        logs = 2.0 * self.log_scales()
        return -0.5 * (max(self.weight - 1.0, 0.0) * logs + self._prior(logs) * (-logs).exp()).sum()

    def start(self, matrix: Float[Tensor, "d d"]) -> None:
        fresh = (matrix.diagonal().mean() if self.spherical else matrix.diagonal()).clamp(min=self.floor).log()
        self.log_variances.data = fresh.to(self.log_variances).expand_as(self.log_variances).clone()

    @property
    def n_free(self) -> int:
        return self.log_variances.numel()

    def _prior(self, like: Tensor) -> Tensor:
        prior = torch.as_tensor(self.prior).to(like)
        return (prior[..., None] if self.spherical and prior.dim() == 1 else prior).expand(self.n_states, self.d)


class Full(Covariance):
    """Matrices `[N, d, d]`, or one `[d, d]` tied over all states.

    `factors` are their Cholesky factors, with the logarithms of the diagonals; what lies above the diagonal is not used.
    """

    separate = False

    def __init__(
        self,
        n_states: int,
        d: int,
        prior: float | Tensor,
        weight: float,
        floor: float,
        *,
        given: Float[Tensor, "..."] | None = None,
        tied: bool = False,
    ) -> None:
        super().__init__(n_states, d, prior, weight, floor)
        self.tied = tied
        shape = (d, d) if tied else (n_states, d, d)
        given = given_numbers("covariances", given, shape)
        if given is None:
            given = torch.eye(d).expand(shape)
        root, wrong = torch.linalg.cholesky_ex(given)
        if bool((wrong > 0).any()) or not torch.allclose(given, given.mT):
            raise ValueError("covariances must be symmetric and positive definite: got one that is not")
        self.factors = nn.Parameter(_free(root))

    def forward(self) -> Float[Tensor, "..."]:
        root = self._root()
        return root @ root.mT

    def gram(self, a: Float[Tensor, "*rows d k"], b: Float[Tensor, "*rows d k"]) -> Float[Tensor, "*rows_d_more"]:
        return a @ b.mT

    def log_scales(self) -> Float[Tensor, "n d"]:
        return self.factors.diagonal(dim1=-2, dim2=-1).expand(self.n_states, self.d)

    def whitened(self, errors: Float[Tensor, "*rows n d"]) -> Float[Tensor, "*rows n d"]:
        inverse = self._inverse()
        return errors @ inverse.mT if self.tied else torch.einsum("...nd,ned->...ne", errors, inverse)

    def coloured(self, noise: Float[Tensor, "rows d"], states: Int[Tensor, " rows"]) -> Float[Tensor, "rows d"]:
        root = self._root()
        return noise @ root.mT if self.tied else torch.einsum("rd,red->re", noise, root[states])

    def maximise(self, scatter: Float[Tensor, "n d *more"], counts: Float[Tensor, "n d"]) -> None:
        if self.tied:
            scatter, counts = scatter.sum(0), counts.sum(0)
        below = max(self.weight - self.d, 0.0) + counts[..., :1, None]
        fresh = (self._prior(scatter) + scatter) / below.clamp(min=LEAST)
        fresh = self._above_floor(0.5 * (fresh + fresh.mT))
        self.factors.data = torch.where(below >= LEAST, _free(fresh).to(self.factors.dtype), self.factors.detach())

    def log_prior(self) -> Float[Tensor, ""]:
        inverse, logs = self._inverse(), 2.0 * self.factors.diagonal(dim1=-2, dim2=-1)
        spread = ((inverse @ self._prior(inverse)) * inverse).sum()
        return -0.5 * (max(self.weight - self.d, 0.0) * logs.sum() + spread)

    def start(self, matrix: Float[Tensor, "d d"]) -> None:
        root = _free(self._above_floor(matrix))
        self.factors.data = root.to(self.factors).expand_as(self.factors).clone()

    @property
    def n_free(self) -> int:
        return self.factors.shape[:-2].numel() * self.d * (self.d + 1) // 2

    def _root(self) -> Tensor:
        logs = self.factors.diagonal(dim1=-2, dim2=-1)
        return self.factors.tril(-1) + torch.diag_embed(logs.exp())

    def _inverse(self) -> Tensor:
        """The inverses of the Cholesky factors."""
        root = self._root()
        one = torch.eye(self.d, dtype=root.dtype, device=root.device)
        return torch.linalg.solve_triangular(root, one.expand_as(root), upper=False)

    def _prior(self, like: Tensor) -> Tensor:
        return torch.as_tensor(self.prior).to(like).expand(*self.factors.shape)

    def _above_floor(self, matrices: Tensor) -> Tensor:
        """The Cholesky factors of matrices, once eigenvalues below the floor are raised to it."""
        floor = self.floor * torch.eye(self.d, dtype=matrices.dtype, device=matrices.device)
        low = torch.linalg.cholesky_ex(matrices - floor).info > 0
        if bool(low.any()):
            values, vectors = torch.linalg.eigh(matrices)
            raised = (vectors * values.clamp(min=self.floor)[..., None, :]) @ vectors.mT
            matrices = torch.where(low[..., None, None], raised, matrices)
        return torch.linalg.cholesky(matrices)


def covariance_maker(
    kind: Kind, given: Float[Tensor, "..."] | None, prior: float | Tensor, weight: float, floor: float
) -> Callable[[int, int], Covariance]:
    """A function from the numbers of states and of features to covariances of one of the four kinds, those given or identities."""
    check_choice("covariance", kind, *KINDS)
    not_below_zero(covariance_weight=weight)
    if not floor > 0:
        raise ValueError(f"floor must be above 0: got {floor}")
    shared = {"prior": prior, "weight": weight, "floor": floor, "given": given}
    if kind in {"diagonal", "spherical"}:
        return functools.partial(Diagonal, spherical=kind == "spherical", **shared)
    return functools.partial(Full, tied=kind == "tied", **shared)


def _free(root: Tensor) -> Tensor:
    """A Cholesky factor with the logarithm of its diagonal."""
    return root.tril(-1) + torch.diag_embed(root.diagonal(dim1=-2, dim2=-1).log())
