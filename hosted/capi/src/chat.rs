//! Conversations as prompts.

use crate::arguments::{Versioned, c_text, check_memory, fill, params, slice};
use crate::model::{ModelHandle, handle};
use crate::status::{Failure, Status, guard};
use core::ffi::c_char;
use core::{fmt, ptr};
use sluice_text::chat::{PromptMaker, template};
use sluice_text::chat_template::{ChatTemplate, Message, RenderOptions};
use static_assertions::const_assert_eq;

/// A message of a conversation. The size of this struct never changes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant`, or another role that the template knows.
    pub role: *const c_char,
    /// The text of the message.
    pub content: *const c_char,
}

/// Settings for rendering a conversation. Begin with `sluice_chat_params_default()`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ChatParams {
    /// Set to `sizeof` this struct.
    pub struct_bytes: usize,
    /// A Jinja template, or the name of a built-in one (`chatml`, `llama3`, …); null is the model's
    /// own.
    pub chat_template: *const c_char,
    /// Functions that the model may call, as a JSON array of schemas; null for none.
    pub tools: *const c_char,
    /// Further variables of the template, as a JSON object; null for none.
    pub variables: *const c_char,
    /// 1 appends the beginning of the assistant's turn.
    pub add_generation_prompt: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The conversation as a JSON array of messages as in OpenAI's API, which may have calls and their results; null
    /// for `messages`, which has to be empty otherwise.
    pub messages_json: *const c_char,
}

// SAFETY: numbers and pointers without padding.
unsafe impl Versioned for ChatParams {
    const NAME: &'static str = "sluice_chat_params";
    const DEFAULT: Self = Self {
        struct_bytes: size_of::<Self>(),
        chat_template: ptr::null(),
        tools: ptr::null(),
        variables: ptr::null(),
        add_generation_prompt: 1,
        reserved: 0,
        messages_json: ptr::null(),
    };
}

// The layout that C programs were compiled with.
#[cfg(target_pointer_width = "64")]
const_assert_eq!(size_of::<ChatMessage>(), 16);
#[cfg(target_pointer_width = "64")]
const_assert_eq!(size_of::<ChatParams>(), 48);

/// The model's own template, with the beginning of the assistant's turn.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_chat_params_default() -> ChatParams {
    ChatParams::DEFAULT
}

/// Renders the prompt for a conversation, without a terminating zero, and writes its length in bytes
/// to `*text_len`; with a null `text` only the length is written. Messages and tools that the template cannot take are
/// rewritten. The prompt includes the beginning-of-sequence token if the model needs one, so generate from it with
/// `add_special` 0 and `parse_special` 1. `params` may be null.
///
/// # Safety
/// - `model` is a handle, `messages` points to `n_messages` messages whose texts are
///   zero-terminated, `params` is null or a struct that begins with its size and whose texts are null
///   or zero-terminated, `text` is null or has room for `capacity` bytes, `text_len` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_chat_render(
    model: *const ModelHandle,
    messages: *const ChatMessage,
    n_messages: usize,
    params: *const ChatParams,
    text: *mut c_char,
    capacity: usize,
    text_len: *mut usize,
) -> Status {
    // SAFETY: by the caller.
    guard(|| unsafe {
        let model = handle("model", model)?;
        let messages = slice("messages", messages, n_messages)?;
        let rendered = render(model, messages, &self::params(params)?)?;
        fill(
            "text",
            rendered.as_bytes(),
            text.cast::<u8>(),
            capacity,
            text_len,
        )
    })
}

/// # Safety
/// - All texts are null or zero-terminated.
unsafe fn render(
    model: &ModelHandle,
    messages: &[ChatMessage],
    params: &ChatParams,
) -> Result<String, Failure> {
    let needed = |name, text| {
        // SAFETY: by the caller.
        let text = unsafe { c_text(name, text)? };
        text.ok_or_else(|| Failure::null(name))
    };
    let message = |message: &ChatMessage| {
        let role = needed("role", message.role)?;
        Ok(Message::new(role, needed("content", message.content)?))
    };
    // SAFETY: by the caller.
    let (asked, tools, variables, talk) = unsafe {
        (
            c_text("chat_template", params.chat_template)?,
            c_text("tools", params.tools)?,
            c_text("variables", params.variables)?,
            c_text("messages_json", params.messages_json)?,
        )
    };
    let lens = messages.iter().map(|message| {
        let (role, content) = (
            needed("role", message.role)?,
            needed("content", message.content)?,
        );
        Ok(role.len() + content.len())
    });
    let bytes = lens.sum::<Result<usize, Failure>>()?;
    // They are copied, passed to the template, and rendered.
    let bytes = bytes + talk.map_or(0, str::len);
    check_memory("the conversation", bytes.saturating_mul(4))?;
    let messages: Vec<Message> = match talk {
        Some(_) if !messages.is_empty() => {
            let why = "messages_json cannot be combined with messages";
            return Err(Failure::new(Status::SLUICE_INVALID_ARGUMENT, why));
        }
        Some(talk) => json("messages_json", talk)?,
        None => messages
            .iter()
            .map(message)
            .collect::<Result<_, Failure>>()?,
    };
    let invalid = |error: &dyn fmt::Display| Failure::new(Status::SLUICE_INVALID_ARGUMENT, error);
    let tokenizer = model.model.tokenizer();
    let given;
    let maker = match asked {
        Some(text) => {
            let template = ChatTemplate::parse(template(text).unwrap_or(text));
            given = PromptMaker::new(template.map_err(|error| invalid(&error))?, tokenizer);
            &given
        }
        None => model.prompts().map_err(|error| invalid(&error))?,
    };
    let options = RenderOptions {
        add_generation_prompt: params.add_generation_prompt != 0,
        tools: tools.map(|text| json("tools", text)).transpose()?,
        extra: variables
            .map(|text| json("variables", text))
            .transpose()?
            .unwrap_or_default(),
        ..RenderOptions::default()
    };
    let text = maker
        .text(&messages, &options)
        .map_err(|error| invalid(&error))?;
    // A template may write the beginning-of-sequence token, or leave it to the tokenizer.
    let (bos, _) = maker.ends();
    match bos.filter(|bos| tokenizer.adds_bos() && !text.starts_with(bos)) {
        Some(bos) => Ok(format!("{bos}{text}")),
        None => Ok(text),
    }
}

fn json<T: serde::de::DeserializeOwned>(name: &str, text: &str) -> Result<T, Failure> {
    serde_json::from_str(text).map_err(|error| {
        let message = format_args!("{name} is not valid: {error}");
        Failure::new(Status::SLUICE_INVALID_ARGUMENT, message)
    })
}
