//! Jinja as Hugging Face's transformers sets it up, with limits: minijinja, made to render what
//! Python's jinja2 renders.
//!
//! - `trim_blocks` and `lstrip_blocks`; methods of Python's strings, lists and dicts; `break` and
//!   `continue`; undefined names print nothing.
//! - `raise_exception(message)`, `strftime_now(format)` (in UTC), and `tojson` as Python's
//!   `json.dumps(ensure_ascii=False)` writes.
//! - `{% generation %}` and `{% endgeneration %}`, which mark text for training:
//!   [`Template::render_generated`] returns the bytes between them.
//!
//! # Hostile templates
//!
//! A template may come from anywhere. It can print a wrong text; it can neither hang nor take
//! memory without bound, open files, nor include other templates. Limits, all of them stated below:
//! its length, the length of one tag, instructions, recursion, what one value weighs, how much all
//! values together touch, the output. A panic of minijinja's is caught and becomes an error.
//!
//! A list that the template itself wrote (`[..]`) can be changed by `append`, `extend`, `insert` and `pop`, which
//! transformers' sandbox refuses, but published templates need.
//!
//! Operators, filters, tests and methods are Python's (`python`), scopes are jinja2's (`nodes`).
//! Not supported, and refused by name: the filters `random`, `urlize` and `wordwrap`, `autoescape`,
//! `varargs` and `kwargs` of macros, a plus sign before a value, characters by name, a generator as
//! a text. What differs: integers have 128 bits, one character taken out of Markup is plain, a macro
//! tells its arguments as a list, a generator made of another takes that one's items at once, and
//! the `if` of a loop is asked for all items before the first turn.
//!
//! Source: `src/transformers/utils/chat_template_utils.py` of huggingface/transformers for what is
//! defined; the tests compare with jinja2 itself.
//!
//! ```
//! use sluice_jinja::{Template, Variables};
//! use std::time::SystemTime;
//! let template = Template::parse("{% for name in names %}{{ name | upper }} {% endfor %}")?;
//! let mut variables = Variables::default();
//! variables.set("names", &["ada", "grace"]);
//! assert_eq!(template.render(variables, SystemTime::now())?, "ADA GRACE ");
//! # Ok::<(), sluice_jinja::TemplateError>(())
//! ```

#![forbid(unsafe_code)]

mod clock;
mod error;
mod functions;
mod guard;
mod json;
mod limits;
mod marks;
mod names;
mod nodes;
mod python;
mod rebuild;
mod slice;
mod source;
mod template;
mod values;

pub use clock::strftime;
pub use error::TemplateError;
pub use limits::{
    INSTRUCTIONS_MAX, OUTPUT_BYTES_MAX, TEMPLATE_BYTES_MAX, TOUCHED_BYTES_MAX, VALUE_BYTES_MAX,
};
pub use template::{Rendered, Template, Variables};
