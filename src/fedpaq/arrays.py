"""Arrays: short names for the types of NumPy arrays, as annotations use them. Shapes stand in comments: (r, p)."""

from typing import Any

import numpy as np
import numpy.typing as npt

AnyArray = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int16 = npt.NDArray[np.int16]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]
UInt32 = npt.NDArray[np.uint32]
UInt64 = npt.NDArray[np.uint64]
