"""The API pages without what only authors of structures need: `docs/api/extend.md` has that."""

from collections.abc import Iterator

from griffe import Class, Extension, Function, GriffeLoader, Module

MODEL = "structure.model.StructureModel"  # what an author writes
DECORATOR = "for_authors"  # what an author may call or override


class ForAuthors(Extension):
    """Makes methods for authors, and every override of them, not public."""

    def on_package(self, *, pkg: Module, loader: GriffeLoader, **kwargs: object) -> None:
        """Called when the whole package has been read."""
        if pkg.name != "tailsum":
            return
        classes = list(_classes(pkg))
        names = {name for name in pkg[MODEL].members if not name.startswith("_")}
        names |= {member.name for each in classes for member in each.members.values() if _is_marked(member)}
        for each in classes:
            for name in names & each.members.keys():
                each.members[name].public = False


def _classes(module: Module) -> Iterator[Class]:
    for member in module.members.values():
        if member.is_alias:
            continue
        if isinstance(member, Class):
            yield member
        elif isinstance(member, Module):
            yield from _classes(member)


def _is_marked(member: object) -> bool:
    return isinstance(member, Function) and any(str(x.value).endswith(DECORATOR) for x in member.decorators)
