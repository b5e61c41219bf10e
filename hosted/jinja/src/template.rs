//! Templates and their variables.

use crate::error::{TemplateError, raised};
use crate::guard::Guard;
use crate::limits::{INSTRUCTIONS_MAX, TEMPLATE_BYTES_MAX};
use crate::{clock, functions, marks, rebuild, source};
use core::panic::AssertUnwindSafe;
use minijinja::machinery::{self, CodeGenerator, Instructions};
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, Value};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

/// A template that has been checked to be well formed.
#[derive(Clone, Debug)]
pub struct Template {
    /// The source without the tags that mark generated text.
    source: String,
}

/// The variables of a rendering. Names that are not set are undefined.
#[derive(Clone, Debug, Default)]
pub struct Variables(Vec<(String, Value)>);

impl Variables {
    /// Sets a variable; a later value replaces an earlier one.
    pub fn set(&mut self, name: &str, value: &(impl Serialize + ?Sized)) {
        self.0.push((name.to_owned(), Value::from(Serde(value))));
    }
}

impl Template {
    /// Checks a template. A byte order mark is ignored, and lines may have Windows
    /// line endings.
    ///
    /// # Errors
    /// It is too long or not valid Jinja; the error names the line.
    pub fn parse(source: &str) -> Result<Self, TemplateError> {
        let len = source.len();
        if len > TEMPLATE_BYTES_MAX {
            return Err(TemplateError::TooLong { len });
        }
        let source = source.strip_prefix('\u{feff}').unwrap_or(source);
        if source.trim().is_empty() {
            return Err(TemplateError::Empty);
        }
        let source = source::without_generation_tags(&source::with_newlines(source));
        let source = source::with_escapes(&source);
        source::check_tags(&source)?;
        let template = Self { source };
        let compiled = contained(|| template.compile().map(drop));
        let unknown = |reason| Err(TemplateError::Syntax { line: 0, reason });
        compiled.unwrap_or_else(unknown)?;
        Ok(template)
    }

    /// Its source, without the tags that mark generated text.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders the template with `variables`, to at most [`OUTPUT_BYTES_MAX`](crate::OUTPUT_BYTES_MAX); `strftime_now`
    /// uses `now`. The template is compiled each time, which takes about ten microseconds per kilobyte of template.
    ///
    /// # Errors
    /// The template refuses the variables, fails, or exceeds a limit; the error names the line.
    pub fn render(&self, variables: Variables, now: SystemTime) -> Result<String, TemplateError> {
        let rendered = contained(|| self.render_within(variables, now));
        let unknown = |reason| Err(TemplateError::Render { line: 0, reason });
        rendered.unwrap_or_else(unknown)
    }

    fn render_within(
        &self,
        variables: Variables,
        now: SystemTime,
    ) -> Result<String, TemplateError> {
        let environment = environment(now);
        let (instructions, blocks) = self.compile()?;
        let mut variables = variables.0;
        variables.push(("self".to_owned(), marks::template()));
        let mut out = String::new();
        let mut output = machinery::make_string_output(&mut out);
        let result = machinery::eval(
            &environment,
            &instructions,
            Value::from_pairs(variables),
            &blocks,
            &mut output,
            AutoEscape::None,
        );
        result.map_err(|error| TemplateError::render(&error))?;
        Ok(out)
    }

    fn compile(&self) -> Result<Compiled<'_>, TemplateError> {
        let syntax = |error: Error| TemplateError::syntax(&error);
        let config = source::syntax().map_err(syntax)?;
        let parsed = machinery::parse(&self.source, NAME, config).map_err(syntax)?;
        let mut generator = CodeGenerator::new(NAME, &self.source);
        generator.compile_stmt(&rebuild::statement(&parsed));
        Ok(generator.finish())
    }
}

type Compiled<'s> = (Instructions<'s>, BTreeMap<&'s str, Instructions<'s>>);

/// The result of `work`, or an error message if minijinja panicked, which fuzzing has observed. None of its
/// values outlive the panic.
fn contained<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let result = std::panic::catch_unwind(AssertUnwindSafe(work));
    result.map_err(|_| "the template broke its interpreter".to_owned())
}

fn environment(now: SystemTime) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(INSTRUCTIONS_MAX));
    environment.set_recursion_limit(RECURSION_MAX);
    environment.set_debug(false);
    environment.add_function(
        "raise_exception",
        |message: String| -> Result<Value, Error> { Err(raised(message)) },
    );
    environment.add_function("strftime_now", move |format: &str| {
        clock::strftime(format, now)
    });
    functions::install(&mut environment, &Arc::new(Guard::default()));
    environment
}

/// Maximum depth of macros (4 each) and recursive loops.
const RECURSION_MAX: usize = 200;
const NAME: &str = "chat_template";
