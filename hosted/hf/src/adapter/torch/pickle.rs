//! The pickle of a file of tensors, read without running it.
//!
//! Instructions and their codes: Python's Lib/pickletools.py.

use crate::safetensors::Dtype;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// A tensor, and where its numbers are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PickledTensor {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    /// The member of the archive that holds them.
    pub(super) key: Rc<str>,
    /// The first number in it.
    pub(super) first: u64,
    pub(super) shape: Vec<u64>,
    pub(super) strides: Vec<u64>,
}

/// The tensors of a dictionary by name. An error names what is not a tensor.
pub(super) fn tensors_in(pickle: &[u8]) -> Result<Vec<PickledTensor>, String> {
    let mut machine = Machine {
        rest: pickle,
        ..Machine::default()
    };
    while machine.step()? {}
    let Some(Value::Dict(all)) = machine.stack.pop() else {
        return Err("it is not a dictionary of tensors".into());
    };
    let all = machine.dicts.swap_remove(all);
    let mut names = HashSet::new();
    let named = all.into_iter().map(|(key, value)| match (key, value) {
        (Value::Text(name), _) if !names.insert(Rc::clone(&name)) => {
            Err(format!("{name} is in it twice"))
        }
        (Value::Text(name), Value::Tensor(tensor)) => Ok(PickledTensor {
            name: name.to_string(),
            ..Rc::unwrap_or_clone(tensor)
        }),
        (Value::Text(name), _) => Err(format!("{name} is not a tensor")),
        _ => Err("it has a key that is not a text".into()),
    });
    named.collect()
}

/// A value on the stack.
#[derive(Clone, Debug)]
enum Value {
    None,
    Bool,
    Number(u64),
    Text(Rc<str>),
    /// With the depth of tuples in it.
    Tuple(Rc<[Self]>, usize),
    /// Index into [`Machine::dicts`].
    Dict(usize),
    Global(Global),
    Storage(Dtype, Rc<str>),
    Tensor(Rc<PickledTensor>),
}

/// The names that may be called or referred to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Storage(Dtype),
}

impl Global {
    fn of(module: &str, name: &str) -> Option<Self> {
        let storage = |dtype| Some(Self::Storage(dtype));
        match (module, name) {
            ("collections", "OrderedDict") => Some(Self::OrderedDict),
            ("torch._utils", "_rebuild_tensor_v2") => Some(Self::RebuildTensor),
            ("torch._utils", "_rebuild_parameter") => Some(Self::RebuildParameter),
            ("torch", "FloatStorage") => storage(Dtype::F32),
            ("torch", "HalfStorage") => storage(Dtype::F16),
            ("torch", "BFloat16Storage") => storage(Dtype::BF16),
            ("torch", "DoubleStorage") => storage(Dtype::F64),
            ("torch", "LongStorage") => storage(Dtype::I64),
            ("torch", "IntStorage") => storage(Dtype::I32),
            ("torch", "ByteStorage") => storage(Dtype::U8),
            ("torch", "CharStorage") => storage(Dtype::I8),
            ("torch", "BoolStorage") => storage(Dtype::Bool),
            _ => None,
        }
    }
}

/// Tuples in tuples; tensors have three.
const DEPTH_MAX: usize = 8;
const DIMS_MAX: usize = 8;
/// Values on the stack, in the memo, and dictionaries: about ten times what the largest adapters have.
const VALUES_MAX: usize = 1 << 21;
const DICTS_MAX: usize = 1 << 10;

/// Reads instructions.
#[derive(Default)]
struct Machine<'p> {
    rest: &'p [u8],
    stack: Vec<Value>,
    /// Lengths of the stack at marks.
    marks: Vec<usize>,
    memo: HashMap<u64, Value>,
    dicts: Vec<Vec<(Value, Value)>>,
}

impl<'p> Machine<'p> {
    /// Follows an instruction; false after the last one.
    fn step(&mut self) -> Result<bool, String> {
        let n_values = self.stack.len().max(self.memo.len());
        if n_values > VALUES_MAX || self.dicts.len() > DICTS_MAX {
            return Err("it has more values than an adapter needs".into());
        }
        let code = self.take(1)?[0];
        match code {
            b'.' => return Ok(false),
            // PROTO and FRAME: their arguments say nothing about the values.
            0x80 => drop(self.take(1)?),
            0x95 => drop(self.take(8)?),
            b'(' => self.marks.push(self.stack.len()),
            b'N' => self.stack.push(Value::None),
            0x88 | 0x89 => self.stack.push(Value::Bool),
            b'K' => self.push_number(1)?,
            b'M' => self.push_number(2)?,
            b'J' => self.push_number(4)?,
            0x8a => {
                let n = self.number(1)?;
                self.push_number(n)?;
            }
            b'X' => self.push_text(4)?,
            0x8c => self.push_text(1)?,
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                let global = Global::of(module, name);
                let global =
                    global.ok_or_else(|| format!("it names {module}.{name}, which is refused"))?;
                self.stack.push(Value::Global(global));
            }
            b'}' => self.push_dict(),
            b')' => self.push_tuple(Vec::new())?,
            0x85..=0x87 => {
                let n = usize::from(code - 0x84);
                let items = self.pop_many(n)?;
                self.push_tuple(items)?;
            }
            b't' => {
                let items = self.pop_to_mark()?;
                self.push_tuple(items)?;
            }
            b'q' => self.remember(1)?,
            b'r' => self.remember(4)?,
            0x94 => {
                let place = self.memo.len() as u64;
                self.memo.insert(place, self.top()?.clone());
            }
            b'h' => self.recall(1)?,
            b'j' => self.recall(4)?,
            b's' => {
                let items = self.pop_many(2)?;
                self.set_items(items)?;
            }
            b'u' => {
                let items = self.pop_to_mark()?;
                self.set_items(items)?;
            }
            b'Q' => self.push_storage()?,
            b'R' => self.call()?,
            // The state of a dictionary holds versions of modules.
            b'b' => match self.pop_many(2)?.swap_remove(0) {
                dict @ Value::Dict(_) => self.stack.push(dict),
                _ => return Err("it sets the state of something other than a dictionary".into()),
            },
            other => {
                let shown = char::from(other).escape_default();
                return Err(format!(
                    "it has the instruction {other:#04x} ({shown}), which is refused"
                ));
            }
        }
        Ok(true)
    }

    /// A storage: ("storage", type, key, device, number of elements).
    fn push_storage(&mut self) -> Result<(), String> {
        let id = self.pop()?;
        let Value::Tuple(parts, _) = &id else {
            return Err(NO_STORAGE.into());
        };
        let [
            Value::Text(kind),
            Value::Global(Global::Storage(dtype)),
            Value::Text(key),
            ..,
        ] = &parts[..]
        else {
            return Err(NO_STORAGE.into());
        };
        if **kind != *"storage" {
            return Err(NO_STORAGE.into());
        }
        self.stack.push(Value::Storage(*dtype, Rc::clone(key)));
        Ok(())
    }

    /// A call of one of the known functions.
    fn call(&mut self) -> Result<(), String> {
        let both = self.pop_many(2)?;
        let [Value::Global(global), Value::Tuple(values, _)] = &both[..] else {
            return Err("it calls something that is not a function".into());
        };
        match (global, &values[..]) {
            (Global::OrderedDict, []) => self.push_dict(),
            (
                Global::RebuildTensor,
                [
                    Value::Storage(dtype, key),
                    Value::Number(first),
                    Value::Tuple(shape, _),
                    Value::Tuple(strides, _),
                    ..,
                ],
            ) if shape.len() == strides.len() && shape.len() <= DIMS_MAX => {
                let numbers = |all: &[Value]| -> Option<Vec<u64>> {
                    let number = |value: &Value| match value {
                        Value::Number(n) => Some(*n),
                        _ => None,
                    };
                    all.iter().map(number).collect()
                };
                let (Some(shape), Some(strides)) = (numbers(shape), numbers(strides)) else {
                    return Err("it has a tensor of an unknown shape".into());
                };
                self.stack.push(Value::Tensor(Rc::new(PickledTensor {
                    name: String::new(),
                    dtype: *dtype,
                    key: Rc::clone(key),
                    first: *first,
                    shape,
                    strides,
                })));
            }
            (Global::RebuildParameter, [tensor @ Value::Tensor(_), ..]) => {
                self.stack.push(tensor.clone())
            }
            _ => return Err(format!("it calls {global:?} with unknown values")),
        }
        Ok(())
    }

    fn set_items(&mut self, items: Vec<Value>) -> Result<(), String> {
        let Value::Dict(dict) = *self.top()? else {
            return Err("it sets an item of something other than a dictionary".into());
        };
        let mut items = items.into_iter();
        while let (Some(key), Some(value)) = (items.next(), items.next()) {
            self.dicts[dict].push((key, value));
        }
        Ok(())
    }

    fn push_dict(&mut self) {
        self.stack.push(Value::Dict(self.dicts.len()));
        self.dicts.push(Vec::new());
    }

    fn push_tuple(&mut self, items: Vec<Value>) -> Result<(), String> {
        let depth = |item: &Value| match item {
            Value::Tuple(_, depth) => *depth,
            _ => 0,
        };
        let depth = 1 + items.iter().map(depth).max().unwrap_or(0);
        if depth > DEPTH_MAX {
            return Err("it has tuples in tuples in tuples".into());
        }
        self.stack.push(Value::Tuple(items.into(), depth));
        Ok(())
    }

    fn push_text(&mut self, len_bytes: u64) -> Result<(), String> {
        let len = self.number(len_bytes)?;
        let text =
            str::from_utf8(self.take(len)?).map_err(|_| "it has a text that is not UTF-8")?;
        self.stack.push(Value::Text(text.into()));
        Ok(())
    }

    /// A number of `n` bytes; negative ones occur in nothing that is read.
    fn push_number(&mut self, n: u64) -> Result<(), String> {
        let number = self.number(n)?;
        self.stack.push(Value::Number(number));
        Ok(())
    }

    fn remember(&mut self, n: u64) -> Result<(), String> {
        let place = self.number(n)?;
        self.memo.insert(place, self.top()?.clone());
        Ok(())
    }

    fn recall(&mut self, n: u64) -> Result<(), String> {
        let place = self.number(n)?;
        let value = self
            .memo
            .get(&place)
            .ok_or("it recalls what it has not stored")?;
        self.stack.push(value.clone());
        Ok(())
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Value>, String> {
        let mark = self.marks.pop().filter(|mark| *mark <= self.stack.len());
        Ok(self.stack.split_off(mark.ok_or(SHORT)?))
    }

    fn pop_many(&mut self, n: usize) -> Result<Vec<Value>, String> {
        let at = self.stack.len().checked_sub(n).ok_or(SHORT)?;
        Ok(self.stack.split_off(at))
    }

    fn pop(&mut self) -> Result<Value, String> {
        self.stack.pop().ok_or_else(|| SHORT.into())
    }

    fn top(&self) -> Result<&Value, String> {
        self.stack.last().ok_or_else(|| SHORT.into())
    }

    fn number(&mut self, n: u64) -> Result<u64, String> {
        let bytes = self.take(n)?;
        let mut number = [0; 8];
        let room = number
            .get_mut(..bytes.len())
            .ok_or("it has a number of more than 8 bytes")?;
        room.copy_from_slice(bytes);
        Ok(u64::from_le_bytes(number))
    }

    fn line(&mut self) -> Result<&'p str, String> {
        let end = self
            .rest
            .iter()
            .position(|byte| *byte == b'\n')
            .ok_or(SHORT)?;
        let line = self.take(end as u64)?;
        self.take(1)?;
        str::from_utf8(line).map_err(|_| "it has a name that is not UTF-8".into())
    }

    fn take(&mut self, n: u64) -> Result<&'p [u8], String> {
        let n = usize::try_from(n).map_err(|_| SHORT)?;
        let (taken, rest) = self.rest.split_at_checked(n).ok_or(SHORT)?;
        self.rest = rest;
        Ok(taken)
    }
}

const SHORT: &str = "it ends too early";
const NO_STORAGE: &str = "it refers to something other than the numbers of a tensor";
