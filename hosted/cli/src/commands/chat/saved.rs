//! Conversations in files.

use anyhow::{Context as _, bail};
use serde_json::json;
use sluice::file::OutputFile;
use sluice_text::chat::Chat;
use sluice_text::chat_template::Message;
use std::path::Path;

/// The beginning of such files; no other file is overwritten.
const SAVED: &str = "{\"sluice_chat\":";

pub(super) fn save(chat: &Chat, path: &Path) -> anyhow::Result<String> {
    let object = json!({"sluice_chat": 1, "messages": chat.messages()});
    let text = format!("{object}\n");
    let output = OutputFile::replacing(path, SAVED.as_bytes())?;
    output.write_at(0, text.as_bytes())?;
    output.finish()?;
    let n = chat.messages().len();
    Ok(format!("({n} messages written to {})", path.display()))
}

/// Loads what [`save`] wrote, or `{"messages": [...]}` of another program.
pub(super) fn load(chat: &mut Chat, path: &Path) -> anyhow::Result<String> {
    #[derive(serde::Deserialize)]
    struct SavedChat {
        messages: Vec<Message>,
    }
    let name = path.display();
    let text = crate::ui::input::text("file", path)?;
    let saved: SavedChat =
        serde_json::from_str(&text).with_context(|| format!("{name}: not a conversation"))?;
    if saved.messages.is_empty() {
        bail!("{name} contains no messages");
    }
    let n = saved.messages.len();
    chat.set_messages(saved.messages);
    Ok(format!("({n} messages)"))
}
