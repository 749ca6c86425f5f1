"""``NKIObject``, the base of the classes that kernels use for their configuration: data classes by inheritance."""

from __future__ import annotations

from inspect import get_annotations, isroutine
from typing import Any

__all__ = ["NKIObject"]


class NKIObject:
    """A subclass is made with values for its attributes, in their order or by name, as a data class is.

    Its attributes are those that the class body (or a base's) annotates or assigns; one without a value there is None
    unless given. ``__post_init__`` runs last. ``@dataclass`` above the class, or an ``__init__`` in it, replaces this
    one. Objects with equal attributes are equal.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Annotate the class body's plain assignments: ``@dataclass`` makes fields of annotated attributes only."""
        super().__init_subclass__(**kwargs)
        known = get_annotations(cls)
        assigned = {name: Any for name, value in vars(cls).items() if _is_value(name, value) and name not in known}
        cls.__annotations__ = {**known, **assigned}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        values = _fields(type(self))
        if len(args) > len(values):
            raise TypeError(f"{type(self).__name__} takes {len(values)} values; {len(args)} were given")
        given = dict(zip(values, args, strict=False))
        for name, value in kwargs.items():
            if name not in values or name in given:
                problem = "twice a value for" if name in given else "no attribute"
                raise TypeError(f"{type(self).__name__} has {problem} {name!r}")
            given[name] = value
        for name, value in {**values, **given}.items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    def __post_init__(self) -> None:
        """A hook for subclasses, called after the attributes are set."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


def _fields(cls: type) -> dict[str, Any]:
    """The attributes of a class, those of its bases first, with their values; None for no value."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__[: cls.__mro__.index(NKIObject)]):
        names = [*get_annotations(base), *(name for name, value in vars(base).items() if _is_value(name, value))]
        for name in dict.fromkeys(names):
            found[name] = vars(base).get(name, found.get(name))
    return found


def _is_value(name: str, value: object) -> bool:
    """True if a name of a class body is an attribute, not a method, a property, a class or Python's own."""
    return not (name.startswith("__") or isroutine(value) or isinstance(value, type) or hasattr(value, "__get__"))
