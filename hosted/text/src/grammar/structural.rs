//! Structural tags: text that is free up to a trigger, behind which one of some tags has to follow.
//!
//! A tag is what it begins with (a trigger is the beginning of that), a JSON value of a schema or any text, and what
//! it ends with. Then the text is free again. The shape is that of vLLM's `structural_tag`.

use super::{GrammarSource, Part, quoted};

/// A text whose inside is constrained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Begins with a trigger.
    pub begin: String,
    /// A JSON schema; `None` for any text up to `end`, which may not be empty then.
    pub schema: Option<String>,
    /// Stands behind it.
    pub end: String,
}

/// Texts with tags in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Structure {
    /// The tags.
    pub tags: Vec<Tag>,
    /// Texts that begin a tag.
    pub triggers: Vec<String>,
    /// Without a tag the text may not end.
    pub at_least_one: bool,
    /// The text ends behind the first tag.
    pub stop_after_first: bool,
}

impl Structure {
    /// The grammar of such texts.
    ///
    /// # Errors
    /// There is no tag, or one that cannot be told from free text.
    pub fn grammar(&self) -> Result<GrammarSource, String> {
        if self.tags.is_empty() || self.triggers.is_empty() {
            return Err("a tag and a trigger are needed".to_owned());
        }
        if self.triggers.iter().any(String::is_empty) {
            return Err("a trigger is empty".to_owned());
        }
        let count = match (self.at_least_one, self.stop_after_first) {
            (true, true) => "tag",
            (true, false) => "tag+ free",
            (false, true) => "(tag | free)",
            (false, false) => "tag* free",
        };
        let lark = |text: String| Part::Lark(text);
        let mut parts = vec![lark(format!("start: {count}\nfree: /(?s:.*)/\n"))];
        let triggers = self.triggers.iter().enumerate();
        let used =
            triggers.filter(|(n, _)| self.tags.iter().any(|tag| self.trigger(tag) == Some(*n)));
        let used: Vec<_> = used.collect();
        let names: Vec<_> = used.iter().map(|(n, _)| format!("tag_{n}")).collect();
        parts.push(lark(format!("tag: {}\n", names.join(" | "))));
        for (number, trigger) in used {
            parts.push(lark(format!("tag_{number}: ")));
            parts.push(Part::Until(trigger.clone()));
            parts.push(lark(" (".to_owned()));
            let tags = self
                .tags
                .iter()
                .filter(|tag| self.trigger(tag) == Some(number));
            for (i, tag) in tags.enumerate() {
                parts.push(lark(if i == 0 { " " } else { " | " }.to_owned()));
                inside(&mut parts, tag, trigger.len())?;
            }
            parts.push(lark(")\n".to_owned()));
        }
        match self.tags.iter().position(|tag| self.trigger(tag).is_none()) {
            None => Ok(GrammarSource::Composed(parts)),
            Some(i) => Err(format!("tag {i} begins with no trigger")),
        }
    }

    /// The number of the trigger that a tag begins with.
    fn trigger(&self, tag: &Tag) -> Option<usize> {
        let begins = |trigger: &String| tag.begin.starts_with(trigger.as_str());
        self.triggers.iter().position(begins)
    }
}

/// What of a tag stands behind its trigger.
fn inside(parts: &mut Vec<Part>, tag: &Tag, trigger_len: usize) -> Result<(), String> {
    let rest = &tag.begin[trigger_len..];
    if !rest.is_empty() {
        parts.push(Part::Lark(quoted(rest)));
    }
    match &tag.schema {
        Some(schema) => {
            parts.push(Part::Json(schema.clone()));
            if !tag.end.is_empty() {
                parts.push(Part::Mark(tag.end.clone()));
            }
        }
        None if tag.end.is_empty() => return Err("a tag of any text needs an end".to_owned()),
        None => parts.push(Part::Until(tag.end.clone())),
    }
    Ok(())
}
