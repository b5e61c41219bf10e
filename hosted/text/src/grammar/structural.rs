//! Structural tags: text that is free up to a trigger, after which one of several tags has to follow.
//!
//! A tag consists of its beginning (which starts with a trigger), a JSON value of a schema or any text, and its end.
//! Afterwards the text is free again. The format is vLLM's `structural_tag`.
//!
//! Free text contains neither control tokens nor triggers: the first one ends it. Tags for which this cannot be
//! enforced are refused by name, here or once the vocabulary is known.

use super::composed::ANY_TEXT;
use super::{GrammarSource, Part, quoted};

/// A constrained section of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Begins with a trigger.
    pub begin: String,
    /// A JSON schema; `None` for any text up to `end`, which may not be empty then.
    pub schema: Option<String>,
    /// The text that ends the tag.
    pub end: String,
}

/// Texts that contain tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Structure {
    /// The tags.
    pub tags: Vec<Tag>,
    /// Texts that start a tag.
    pub triggers: Vec<String>,
    /// Whether the text must contain a tag before it may end.
    pub at_least_one: bool,
    /// Whether the text ends after the first tag.
    pub stop_after_first: bool,
}

impl Structure {
    /// The grammar of such texts.
    ///
    /// # Errors
    /// There are no tags, a tag cannot be distinguished from free text, a trigger hides another or has no tag, or there
    /// are too many of them.
    pub fn grammar(&self) -> Result<GrammarSource, String> {
        self.check_sizes()?;
        let triggers = self.distinct_triggers()?;
        let tags = self.tags_by_trigger(&triggers)?;
        let count = match (self.at_least_one, self.stop_after_first) {
            (true, true) => "tag",
            (true, false) => "tag+ free",
            (false, true) => "(tag | free)",
            (false, false) => "tag* free",
        };
        let lark = |text: String| Part::Lark(text);
        let names: Vec<_> = (0..triggers.len()).map(|n| format!("tag_{n}")).collect();
        let names = names.join(" | ");
        let mut parts = vec![lark(format!(
            "start: {count}\nfree: /{ANY_TEXT}/\ntag: {names}\n"
        ))];
        for (number, (trigger, tags)) in triggers.iter().zip(&tags).enumerate() {
            parts.push(lark(format!("tag_{number}: ")));
            parts.push(Part::Find {
                mark: (*trigger).to_owned(),
                may_end: true,
            });
            for (i, tag) in tags.iter().enumerate() {
                parts.push(lark(if i == 0 { " ( " } else { " | " }.to_owned()));
                inside(&mut parts, tag, trigger.len());
            }
            parts.push(lark(" )\n".to_owned()));
        }
        Ok(GrammarSource::Composed(parts))
    }

    /// Checks the sizes, which bound the time of everything after it.
    fn check_sizes(&self) -> Result<(), String> {
        if self.tags.is_empty() || self.triggers.is_empty() {
            return Err("needs at least one tag and one trigger".to_owned());
        }
        for (name, n, most) in [
            ("tags", self.tags.len(), TAGS_MAX),
            ("triggers", self.triggers.len(), TRIGGERS_MAX),
        ] {
            if n > most {
                return Err(format!("{n} {name} exceed the maximum of {most}"));
            }
        }
        let of_tags = self.tags.iter().flat_map(|tag| [&tag.begin, &tag.end]);
        let mut marks = of_tags.chain(&self.triggers);
        if let Some(mark) = marks.find(|mark| mark.len() > MARK_BYTES_MAX) {
            let begin = quoted(&mark[..mark.floor_char_boundary(SHOWN_BYTES)]);
            let what =
                format!("the text beginning with {begin} is longer than {MARK_BYTES_MAX} bytes");
            return Err(what);
        }
        Ok(())
    }

    /// The triggers without duplicates. None may contain another, which would end free text at the same place or
    /// earlier.
    fn distinct_triggers(&self) -> Result<Vec<&str>, String> {
        let mut triggers: Vec<&str> = Vec::with_capacity(self.triggers.len());
        for trigger in self.triggers.iter().map(String::as_str) {
            if trigger.is_empty() {
                return Err("a trigger is empty".to_owned());
            }
            if !triggers.contains(&trigger) {
                triggers.push(trigger);
            }
        }
        for outer in &triggers {
            let is_within = |inner: &&&str| *inner != outer && outer.contains(**inner);
            if let Some(inner) = triggers.iter().find(is_within) {
                let (outer, inner) = (quoted(outer), quoted(inner));
                return Err(format!("the trigger {outer} contains the trigger {inner}"));
            }
        }
        Ok(triggers)
    }

    /// The tags of each trigger.
    fn tags_by_trigger(&self, triggers: &[&str]) -> Result<Vec<Vec<&Tag>>, String> {
        let mut tags = vec![Vec::new(); triggers.len()];
        for (i, tag) in self.tags.iter().enumerate() {
            let begun = triggers
                .iter()
                .position(|trigger| tag.begin.starts_with(trigger));
            let number = begun.ok_or_else(|| format!("tag {i} does not begin with a trigger"))?;
            if tag.schema.is_none() && tag.end.is_empty() {
                return Err(format!("tag {i}: content of any text requires an end"));
            }
            tags[number].push(tag);
        }
        match tags.iter().position(Vec::is_empty) {
            None => Ok(tags),
            Some(n) => Err(format!(
                "no tag begins with the trigger {}",
                quoted(triggers[n])
            )),
        }
    }
}

/// The part of a tag after its trigger.
fn inside(parts: &mut Vec<Part>, tag: &Tag, trigger_len: usize) {
    parts.push(Part::Rest {
        mark: tag.begin.clone(),
        from: trigger_len,
    });
    let mark = tag.end.clone();
    match &tag.schema {
        Some(schema) => {
            parts.push(Part::Json(schema.clone()));
            parts.push(Part::Rest { mark, from: 0 });
        }
        None => parts.push(Part::Find {
            mark,
            may_end: false,
        }),
    }
}

const TAGS_MAX: usize = 1024;
const TRIGGERS_MAX: usize = 128;
/// Maximum length of a trigger, and of a tag's beginning and end.
const MARK_BYTES_MAX: usize = 256;
const SHOWN_BYTES: usize = 40;
