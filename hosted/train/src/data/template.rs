//! The chat template of a run: the one that is set, or the model's.

use super::error::DataError;
use crate::config::ModelSettings;
use sluice::vocabulary::VocabularyFile;
use sluice_text::chat::{self, PromptMaker};
use sluice_text::chat_template::{ChatTemplate, ChatTemplateError};
use std::fs;

/// What makes prompts; `None` without a template.
pub(super) fn maker(
    model: &ModelSettings,
    vocabulary: &VocabularyFile,
) -> Result<Option<PromptMaker>, DataError> {
    let wrong = |key, reason: String| DataError::Template { key, reason };
    let template = if let Some(text) = &model.chat_template {
        const KEY: &str = "chat_template";
        chat::check_template(text).map_err(|error| wrong(KEY, error.to_string()))?;
        let source = chat::template(text).unwrap_or(text);
        Some(ChatTemplate::parse(source).map_err(|error| wrong(KEY, error.to_string()))?)
    } else if let Some(path) = &model.chat_template_path {
        const KEY: &str = "chat_template_path";
        let path = match path.is_dir() {
            true => path.join("chat_template.jinja"),
            false => path.clone(),
        };
        let failed =
            |error: &dyn core::fmt::Display| wrong(KEY, format!("{}: {error}", path.display()));
        let source = fs::read_to_string(&path).map_err(|error| failed(&error))?;
        Some(ChatTemplate::parse(&source).map_err(|error| failed(&error))?)
    } else {
        match ChatTemplate::from_gguf(vocabulary.gguf(), None) {
            Ok(template) => Some(template),
            Err(ChatTemplateError::Missing { .. }) => None,
            Err(error) => return Err(wrong("model", error.to_string())),
        }
    };
    let tokenizer = vocabulary.tokenizer();
    Ok(template.map(|template| PromptMaker::new(template, tokenizer).trusting_answers(tokenizer)))
}
