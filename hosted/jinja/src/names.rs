//! Names of the functions that a rebuilt template calls. They contain characters that template names cannot have.

pub(crate) const ADDED: &str = "added()";
pub(crate) const ALONE: &str = "alone()";
pub(crate) const BOUNDED: &str = "bounded()";
pub(crate) const CLOSED: &str = "closed()";
pub(crate) const COMPARED: &str = "compared()";
pub(crate) const CONCATENATED: &str = "concatenated()";
pub(crate) const FLAG: &str = "flag()";
pub(crate) const GIVEN: &str = "given()";
pub(crate) const INDEXED: &str = "indexed()";
pub(crate) const ITERATED: &str = "iterated()";
pub(crate) const LISTED: &str = "listed()";
pub(crate) const MULTIPLIED: &str = "multiplied()";
pub(crate) const NEGATED: &str = "negated()";
pub(crate) const OPENED: &str = "opened()";
pub(crate) const PASSED: &str = "passed()";
pub(crate) const RAISE: &str = "raise()";
pub(crate) const REMAINDER: &str = "remainder()";
pub(crate) const SLICED: &str = "sliced()";
pub(crate) const STORABLE: &str = "storable()";
pub(crate) const SUBSCRIPTED: &str = "subscripted()";
pub(crate) const TOUCHED: &str = "touched()";
pub(crate) const UNPACKED: &str = "unpacked()";
pub(crate) const UNPACKED_EACH: &str = "unpacked_each()";

/// The name that the scope of `{% generation %}` sets, by which it is recognised. Templates could write it, too; it is
/// not a name that any would choose.
pub(crate) const GENERATION: &str = "sluice_generation_scope";
