//! The line that Claude Code writes into the first system text.
//!
//! It has a checksum that changes with every request, so that no request would find the prompt of the one before in the
//! cache. It tells the model nothing.

use core::sync::atomic::{AtomicU64, Ordering};
use serde_json::Value;
use sluice_text::chat_template::Message;

/// What the line begins with.
const NAME: &str = "x-anthropic-billing-header:";

/// Takes the line out of conversations, and counts them.
#[derive(Debug)]
pub(crate) struct BillingLine {
    is_kept: bool,
    n_removed: AtomicU64,
}

impl BillingLine {
    /// Removes nothing if `is_kept`.
    pub(crate) const fn new(is_kept: bool) -> Self {
        Self {
            is_kept,
            n_removed: AtomicU64::new(0),
        }
    }

    /// The number of conversations that had it.
    pub(crate) fn n_removed(&self) -> u64 {
        self.n_removed.load(Ordering::Relaxed)
    }

    /// Removes it from a conversation. Returns what to log, the first time.
    pub(crate) fn remove(&self, messages: &mut Vec<Message>) -> Option<&'static str> {
        if self.is_kept || !remove(messages) {
            return None;
        }
        let is_first = self.n_removed.fetch_add(1, Ordering::Relaxed) == 0;
        is_first.then_some(
            "Claude Code's billing line is left out of the system text, here and from now on: it changes with every \
             request, so that the whole prompt would be read again (--keep-billing-line keeps it)",
        )
    }
}

/// Whether a conversation had the line. A part, or a message, that has nothing else is removed, too.
fn remove(messages: &mut Vec<Message>) -> bool {
    let Some(first) = messages.first_mut() else {
        return false;
    };
    if !matches!(&*first.role, "system" | "developer") {
        return false;
    }
    let text = match &mut first.content {
        Some(Value::Array(parts)) => parts.first_mut().and_then(|part| part.get_mut("text")),
        content => content.as_mut(),
    };
    let Some(Value::String(text)) = text else {
        return false;
    };
    if !cut(text) {
        return false;
    }
    let is_empty = text.is_empty();
    if let Some(Value::Array(parts)) = &mut first.content {
        parts.drain(..usize::from(is_empty));
    }
    let has_parts = matches!(&first.content, Some(Value::Array(parts)) if !parts.is_empty());
    if is_empty && !has_parts {
        messages.remove(0);
    }
    true
}

/// Cuts the line off the beginning of a text: the name and its fields, each `key=value;`. A proxy may have joined it with
/// what follows.
fn cut(text: &mut String) -> bool {
    let Some(mut rest) = text.strip_prefix(NAME) else {
        return false;
    };
    let is_field = |field: &str| {
        let value = field.split_once('=').map(|(_, value)| value);
        value.is_some() && !field.contains(char::is_whitespace)
    };
    while let Some((field, after)) = rest.trim_start_matches(' ').split_once(';') {
        if !is_field(field) {
            break;
        }
        rest = after;
    }
    let end = text.len() - rest.trim_start_matches([' ', '\n']).len();
    text.drain(..end);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const LINE: &str = "x-anthropic-billing-header: cc_version=2.1.63; cch=0a1b2;";

    fn after(system: &Value) -> Value {
        let all = json!([{"role": "system", "content": system}, {"role": "user", "content": "x"}]);
        let mut messages: Vec<Message> = serde_json::from_value(all).unwrap();
        let line = BillingLine::new(false);
        let note = line.remove(&mut messages);
        assert_eq!(note.is_some(), line.n_removed() == 1);
        assert_eq!(line.remove(&mut messages), None);
        json!(messages)[0].clone()
    }

    #[test]
    fn the_line_is_left_out_with_what_has_nothing_else() {
        let user = json!({"role": "user", "content": "x"});
        assert_eq!(after(&json!(LINE)), user);
        assert_eq!(after(&json!([{"type": "text", "text": LINE}])), user);
        let rest = json!("Be brief.");
        assert_eq!(after(&json!(format!("{LINE}\nBe brief.")))["content"], rest);
        for joined in ["", " ", "\n\n"] {
            let text = format!("{LINE}{joined}Be brief.");
            assert_eq!(after(&json!(text))["content"], rest, "{text:?}");
        }
        let brief = json!({"type": "text", "text": "Be brief."});
        let parts = json!([{"type": "text", "text": LINE}, brief]);
        assert_eq!(after(&parts)["content"], json!([brief]));
        for untouched in [
            json!("Be brief."),
            json!(format!("Say {LINE}")),
            json!([brief]),
        ] {
            assert_eq!(after(&untouched)["content"], untouched);
        }
    }

    #[test]
    fn it_is_kept_where_that_is_asked_for() {
        let mut messages = vec![Message::new("system", LINE)];
        let line = BillingLine::new(true);
        assert_eq!(line.remove(&mut messages), None);
        assert_eq!((messages.len(), line.n_removed()), (1, 0));
    }
}
