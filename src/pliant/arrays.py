"""Array types with shapes and dtypes, for annotations: jaxtyping's where it is in use.

Importing jaxtyping takes 13 MB and 0.1 s, which a process that only runs a model does not spend: without it
an annotation such as `Float[np.ndarray, "rows n"]` is its array type. What checks shapes (the tests) imports
jaxtyping before pliant.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Bool as Bool
    from jaxtyping import Float as Float
    from jaxtyping import Float32 as Float32
    from jaxtyping import Float64 as Float64
    from jaxtyping import Int as Int
    from jaxtyping import Int16 as Int16
    from jaxtyping import Int32 as Int32
    from jaxtyping import Int64 as Int64
    from jaxtyping import Integer as Integer
    from jaxtyping import UInt8 as UInt8
    from jaxtyping import UInt16 as UInt16
    from jaxtyping import UInt32 as UInt32
    from jaxtyping import UInt64 as UInt64
else:

    class _Unchecked:
        """`_Unchecked[array type, shape]` is the array type."""

        def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
            return item[0]

    Bool = Float = Float32 = Float64 = Int = Int16 = Int32 = Int64 = Integer = _Unchecked
    UInt8 = UInt16 = UInt32 = UInt64 = _Unchecked
