//! Metadata values: scalars by value, strings and arrays as views of the file's bytes.

use core::fmt;

use super::cursor::Cursor;
use super::error::{GgufError, GgufErrorKind};
use super::value_type::ValueType;
use super::{ARRAY_DEPTH_MAX, ARRAY_LEN_MAX, STRING_LEN_MAX};

/// The value of a metadata entry, or an element of an array.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "each variant holds what its name says")]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// Any bytes: pieces of a vocabulary need not be UTF-8. See [`Value::as_str`].
    String(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// The type, as numbered in the file.
    pub fn value_type(self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// An integer of any type (a bool is not one).
    pub(super) fn as_i128(self) -> Option<i128> {
        Some(match self {
            Self::U8(value) => value.into(),
            Self::I8(value) => value.into(),
            Self::U16(value) => value.into(),
            Self::I16(value) => value.into(),
            Self::U32(value) => value.into(),
            Self::I32(value) => value.into(),
            Self::U64(value) => value.into(),
            Self::I64(value) => value.into(),
            _ => return None,
        })
    }

    /// An integer of any type, if its value fits.
    pub fn as_u32(self) -> Option<u32> {
        self.as_i128().and_then(|value| value.try_into().ok())
    }

    /// An integer of any type, if its value fits.
    pub fn as_i32(self) -> Option<i32> {
        self.as_i128().and_then(|value| value.try_into().ok())
    }

    /// An integer of any type, if its value fits.
    pub fn as_u64(self) -> Option<u64> {
        self.as_i128().and_then(|value| value.try_into().ok())
    }

    /// An integer of any type, if its value fits.
    pub fn as_i64(self) -> Option<i64> {
        self.as_i128().and_then(|value| value.try_into().ok())
    }

    /// A floating-point number; an `f64` is rounded to the nearest `f32`.
    pub fn as_f32(self) -> Option<f32> {
        match self {
            Self::F32(value) => Some(value),
            #[expect(
                clippy::cast_possible_truncation,
                reason = "rounding is what the doc says"
            )]
            Self::F64(value) => Some(value as f32),
            _ => None,
        }
    }

    /// A bool.
    pub fn as_bool(self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// A string of any bytes.
    pub fn as_bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::String(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// A string that is UTF-8.
    pub fn as_str(self) -> Option<&'a str> {
        self.as_bytes()
            .and_then(|bytes| core::str::from_utf8(bytes).ok())
    }

    /// An array.
    pub fn as_array(self) -> Option<Array<'a>> {
        match self {
            Self::Array(array) => Some(array),
            _ => None,
        }
    }
}

/// Reading values.
impl<'a> Cursor<'a> {
    /// A value type and the value after it, checked to the last nested element.
    pub(super) fn value(&mut self) -> Result<Value<'a>, GgufError> {
        let value_type = self.value_type()?;
        self.value_of(value_type, 0)
    }

    /// As [`Self::value`], for a value that was checked before and is known to end at `end`:
    /// does not walk the elements of an array.
    pub(super) fn value_until(&mut self, end: u32) -> Result<Value<'a>, GgufError> {
        let value_type = self.value_type()?;
        if value_type != ValueType::Array {
            return self.value_of(value_type, 0);
        }
        let (element_type, len) = self.array_head()?;
        let data = self.take(u64::from(end).saturating_sub(self.position() as u64))?;
        Ok(Value::Array(Array::new(element_type, len, data)))
    }

    /// A value of type `value_type` inside `depth` arrays.
    pub(super) fn value_of(
        &mut self,
        value_type: ValueType,
        depth: u32,
    ) -> Result<Value<'a>, GgufError> {
        Ok(match value_type {
            ValueType::U8 => Value::U8(self.bytes::<1>()?[0]),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.bytes()?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.bytes()?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.bytes()?)),
            ValueType::U32 => Value::U32(self.u32()?),
            ValueType::I32 => Value::I32(i32::from_le_bytes(self.bytes()?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.bytes()?)),
            ValueType::Bool => Value::Bool(self.bools(1)? == [1]),
            ValueType::String => Value::String(self.string("string length", STRING_LEN_MAX)?),
            ValueType::Array => Value::Array(self.array(depth)?),
            ValueType::U64 => Value::U64(self.u64()?),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.bytes()?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.bytes()?)),
        })
    }

    fn value_type(&mut self) -> Result<ValueType, GgufError> {
        let at = self.position();
        let id = self.u32()?;
        ValueType::from_id(id).ok_or_else(|| self.error(at, GgufErrorKind::UnknownValueType { id }))
    }

    fn bools(&mut self, len: u64) -> Result<&'a [u8], GgufError> {
        let at = self.position();
        let bools = self.take(len)?;
        match bools.iter().position(|&value| value > 1) {
            Some(i) => Err(self.error(at + i, GgufErrorKind::InvalidBool { value: bools[i] })),
            None => Ok(bools),
        }
    }

    fn array(&mut self, depth: u32) -> Result<Array<'a>, GgufError> {
        let at = self.position();
        if depth == ARRAY_DEPTH_MAX {
            let (value, max) = (u64::from(depth) + 1, ARRAY_DEPTH_MAX.into());
            let what = "array nesting";
            return Err(self.error(at, GgufErrorKind::OverLimit { what, value, max }));
        }
        let (element_type, len) = self.array_head()?;
        // At most 2^30 elements of at most 12 bytes: no overflow.
        let len_bytes_min = len * element_type.len_bytes_min();
        self.room(len_bytes_min)?;
        let start = self.position();
        match element_type {
            ValueType::String => {
                for _ in 0..len {
                    self.string("string length", STRING_LEN_MAX)?;
                }
            }
            ValueType::Array => {
                for _ in 0..len {
                    self.array(depth + 1)?;
                }
            }
            ValueType::Bool => drop(self.bools(len)?),
            _ => drop(self.take(len_bytes_min)?),
        }
        Ok(Array::new(element_type, len, self.taken_from(start)))
    }

    fn array_head(&mut self) -> Result<(ValueType, u64), GgufError> {
        let element_type = self.value_type()?;
        let at = self.position();
        let (value, max) = (self.u64()?, ARRAY_LEN_MAX);
        if value > max {
            let what = "array length";
            return Err(self.error(at, GgufErrorKind::OverLimit { what, value, max }));
        }
        Ok((element_type, value))
    }
}

/// An array of values of one type, viewed in place.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    element_type: ValueType,
    len: u64,
    /// Exactly the elements, as they are stored in the file.
    data: &'a [u8],
}

impl<'a> Array<'a> {
    pub(super) fn new(element_type: ValueType, len: u64, data: &'a [u8]) -> Self {
        Self {
            element_type,
            len,
            data,
        }
    }

    /// The type of every element. An element of type `Array` has its own element type.
    pub fn element_type(self) -> ValueType {
        self.element_type
    }

    /// Number of elements, at most [`super::ARRAY_LEN_MAX`].
    pub fn len(self) -> u64 {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The elements as they are stored in the file: little endian, unaligned, without padding.
    pub fn data_bytes(self) -> &'a [u8] {
        self.data
    }

    /// The elements in order.
    pub fn iter(self) -> ArrayIter<'a> {
        ArrayIter {
            cursor: Cursor::at(self.data, 0),
            element_type: self.element_type,
            left: self.len,
        }
    }

    /// Element `i`: immediately if elements are of fixed size, by walking up to it in an array
    /// of strings or arrays.
    pub fn get(self, i: u64) -> Option<Value<'a>> {
        if i >= self.len {
            return None;
        }
        let Some(len_bytes) = self.element_type.len_bytes() else {
            return self.iter().nth(usize::try_from(i).ok()?);
        };
        let start = usize::try_from(i.checked_mul(len_bytes)?).ok()?;
        Cursor::at(self.data.get(start..)?, 0)
            .value_of(self.element_type, 0)
            .ok()
    }

    /// The elements of an array of strings; any bytes each.
    pub fn strings(self) -> Option<Strings<'a>> {
        (self.element_type == ValueType::String).then(|| Strings {
            cursor: Cursor::at(self.data, 0),
            left: self.len,
        })
    }

    /// The elements of an array of `f32`.
    pub fn f32s(self) -> Option<impl ExactSizeIterator<Item = f32> + Clone + 'a> {
        self.numbers(ValueType::F32, f32::from_le_bytes)
    }

    /// The elements of an array of `i32`.
    pub fn i32s(self) -> Option<impl ExactSizeIterator<Item = i32> + Clone + 'a> {
        self.numbers(ValueType::I32, i32::from_le_bytes)
    }

    /// The elements of an array of `u32`.
    pub fn u32s(self) -> Option<impl ExactSizeIterator<Item = u32> + Clone + 'a> {
        self.numbers(ValueType::U32, u32::from_le_bytes)
    }

    /// The elements of an array of bytes.
    pub fn u8s(self) -> Option<&'a [u8]> {
        (self.element_type == ValueType::U8).then_some(self.data)
    }

    fn numbers<T, const N: usize>(
        self,
        element_type: ValueType,
        from_le_bytes: fn([u8; N]) -> T,
    ) -> Option<impl ExactSizeIterator<Item = T> + Clone + use<'a, T, N>> {
        let (numbers, _) = self.data.as_chunks::<N>();
        (self.element_type == element_type)
            .then(|| numbers.iter().map(move |bytes| from_le_bytes(*bytes)))
    }
}

impl<'a> IntoIterator for Array<'a> {
    type Item = Value<'a>;
    type IntoIter = ArrayIter<'a>;

    fn into_iter(self) -> ArrayIter<'a> {
        self.iter()
    }
}

/// Only type and length: the elements may be a whole vocabulary.
impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}; {}]", self.element_type, self.len)
    }
}

/// The elements of an [`Array`]. Made by [`Array::iter`].
#[derive(Clone, Debug)]
pub struct ArrayIter<'a> {
    cursor: Cursor<'a>,
    element_type: ValueType,
    left: u64,
}

impl<'a> Iterator for ArrayIter<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        // The depth was checked when the file was parsed; from here it can only be smaller.
        self.cursor.value_of(self.element_type, 0).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        exact(self.left)
    }
}

impl ExactSizeIterator for ArrayIter<'_> {}

/// The elements of an array of strings. Made by [`Array::strings`].
#[derive(Clone, Debug)]
pub struct Strings<'a> {
    cursor: Cursor<'a>,
    left: u64,
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        self.cursor.string("string length", STRING_LEN_MAX).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        exact(self.left)
    }
}

impl ExactSizeIterator for Strings<'_> {}

fn exact(left: u64) -> (usize, Option<usize>) {
    // Up to ARRAY_LEN_MAX, and every element takes a byte of the slice.
    let left = usize::try_from(left).unwrap_or(usize::MAX);
    (left, Some(left))
}
