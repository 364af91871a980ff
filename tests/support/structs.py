"""A hypothesis strategy for any msgspec type, made from the type itself."""

from typing import Any

from hypothesis import strategies as st
from msgspec import inspect

__all__ = ["values_of"]


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for the values that decode as `annotation`.

    Raises:
        NotImplementedError: it has a type that no message has had so far.
    """
    return _strategy(inspect.type_info(annotation))


def _strategy(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.IntType():
            return _integers(info)
        case inspect.FloatType():
            return st.floats(info.ge, info.le, allow_nan=False)
        case inspect.LiteralType():
            return st.sampled_from(info.values)
        case inspect.StrType():
            return st.text(min_size=info.min_length or 0, max_size=info.max_length or 20)
        case inspect.BytesType():
            return st.binary(min_size=info.min_length or 0, max_size=info.max_length or 40)
        case inspect.VarTupleType():
            items = _strategy(info.item_type)
            most = min(info.max_length or 4, 4)
            return st.lists(items, min_size=info.min_length or 0, max_size=most).map(tuple)
        case inspect.DictType():
            return st.dictionaries(_strategy(info.key_type), _strategy(info.value_type), max_size=4)
        case inspect.AnyType():
            return st.integers(-5, 5) | st.text(max_size=5) | st.none()
        case inspect.UnionType():
            return st.one_of([_strategy(member) for member in info.types])
        case inspect.StructType():
            fields = {field.name: _strategy(field.type) for field in info.fields}
            return st.builds(info.cls, **fields)
    raise NotImplementedError(f"values of {info}")


def _integers(info: inspect.IntType) -> st.SearchStrategy[int]:
    low = info.ge if info.ge is not None else info.gt + 1 if info.gt is not None else -(2**63)
    high = info.le if info.le is not None else info.lt - 1 if info.lt is not None else 2**63 - 1
    return st.integers(low, high)
