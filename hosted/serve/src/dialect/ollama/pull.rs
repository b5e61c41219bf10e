//! `POST /api/pull`.

use super::super::drive::body;
use super::super::error::json_reply;
use super::super::fields::Fields;
use super::super::hub::hub_name;
use super::super::stream::line;
use super::{LINES, error_value};
use crate::answer::Context;
use crate::api::ApiError;
use crate::http::{Request, Response, Source, Step, Stream};
use crate::pulls::{PullState, PullWatch, parts};
use core::pin::Pin;
use core::task::{Context as Waiting, Poll};
use core::time::Duration;
use serde_json::{Value, json};
use sluice_pull::WantedFile;

type Result<T> = core::result::Result<T, ApiError>;

/// Downloads a model of Hugging Face, and offers it.
pub(super) async fn pull(mut context: Context, request: Request) -> Result<Response> {
    let wanted = &["model", "name", "stream"];
    let body = body(&mut context, request, wanted).await?;
    let fields = Fields::of_body(&body)?;
    let asked = fields.first(&["model", "name"]);
    let asked = asked.map(|field| fields.str(field)).transpose()?.flatten();
    let asked = asked.map_or("", str::trim);
    let streams = fields.bool("stream")?.unwrap_or(true);
    if asked.is_empty() {
        return Err(ApiError::field("model", "is missing"));
    }
    let models = context.app.models();
    let found = models.find(asked);
    if found.is_ok() || models.adapters().find(asked).is_some() {
        context.check_allowed(Some(asked), &[])?;
        // The hub may have a newer revision of what it has.
        let is_newest = |&index: &usize| !(context.may_pull() && models.is_cached(index));
        if found.as_ref().map_or(true, is_newest) {
            return Ok(there(streams));
        }
    }
    let name = match (hub_name(asked), found) {
        (Some(name), _) => name,
        (None, Ok(index)) => format!("hf.co/{}", models.name_of(index)),
        (None, Err(_)) => {
            context.check_pull()?;
            return Err(not_of_hub(asked));
        }
    };
    let watch = context.pull(&name)?;
    let lines = Lines::new(watch);
    if streams {
        return Ok(Stream::reply(lines, LINES, Duration::ZERO));
    }
    lines.whole().await.map(|()| json_reply(&success()))
}

fn not_of_hub(asked: &str) -> ApiError {
    let shown: String = asked.chars().take(200).collect();
    let what = format!(
        "{shown:?} is not a model of Hugging Face: only those are downloaded, named hf.co/ORG/REPO[:QUANT]"
    );
    ApiError::field("model", what)
}

/// The reply for a model that the server has.
fn there(streams: bool) -> Response {
    if !streams {
        return json_reply(&success());
    }
    let mut text = String::new();
    line(&mut text, &success());
    crate::http::reply(LINES.content_type, text)
}

fn success() -> Value {
    json!({"status": "success"})
}

/// The progress of a download as lines.
struct Lines {
    /// The next state, and the watch that it is of.
    next: Next,
    /// Bytes of each file that were reported.
    reported: Vec<u64>,
}

type Next = Pin<Box<dyn Future<Output = (PullState, PullWatch)> + Send>>;

impl Lines {
    fn new(watch: PullWatch) -> Self {
        Self {
            next: Box::pin(state(watch)),
            reported: Vec::new(),
        }
    }

    /// Waits for the end.
    async fn whole(mut self) -> Result<()> {
        loop {
            let (state, watch) = (&mut self.next).await;
            match state {
                PullState::Done => return Ok(()),
                PullState::Failed(error) => return Err(error),
                _ => self.next = Box::pin(change(watch)),
            }
        }
    }

    /// Writes a state; true for the last one.
    fn write(&mut self, state: &PullState, text: &mut String) -> bool {
        match state {
            PullState::Asking => line(text, &json!({"status": "pulling manifest"})),
            PullState::Fetching { files, done_bytes } => self.progress(files, *done_bytes, text),
            PullState::Failed(error) => {
                line(text, &error_value(error));
                return true;
            }
            PullState::Done => {
                // Each file was checked when its last byte had arrived.
                line(text, &json!({"status": "verifying sha256 digest"}));
                line(text, &json!({"status": "writing manifest"}));
                line(text, &success());
                return true;
            }
        }
        false
    }

    /// Writes how much of each file is there, where that is more than before.
    fn progress(&mut self, files: &[WantedFile], done_bytes: u64, text: &mut String) {
        self.reported.resize(files.len(), 0);
        let parts = parts(files, done_bytes);
        for ((file, completed), reported) in parts.zip(&mut self.reported) {
            if completed > *reported {
                *reported = completed;
                line(text, &progress(file, completed));
            }
        }
    }
}

/// A file is a layer to Ollama's clients, which know layers by their digests.
fn progress(file: &WantedFile, completed: u64) -> Value {
    let mut line = json!({"status": format!("pulling {}", file.path)});
    if let Some(sha256) = &file.sha256 {
        let short = sha256.get(..12).unwrap_or(sha256);
        line["status"] = format!("pulling {short}").into();
        line["digest"] = format!("sha256:{sha256}").into();
    }
    line["total"] = file.len_bytes.into();
    line["completed"] = completed.into();
    line
}

/// The present state.
async fn state(mut watch: PullWatch) -> (PullState, PullWatch) {
    let state = watch.states.borrow_and_update().clone();
    (state, watch)
}

/// The next state.
async fn change(mut watch: PullWatch) -> (PullState, PullWatch) {
    // The sender lives as long as the watch.
    let _changed = watch.states.changed().await;
    state(watch).await
}

impl Source for Lines {
    fn poll_next(&mut self, context: &mut Waiting<'_>, text: &mut String) -> Poll<Step> {
        let Poll::Ready((state, watch)) = self.next.as_mut().poll(context) else {
            return Poll::Pending;
        };
        let is_over = self.write(&state, text);
        self.next = Box::pin(change(watch));
        Poll::Ready(if is_over { Step::End } else { Step::More })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_layers() {
        let file = |sha256: Option<&str>| WantedFile {
            path: "m.gguf".into(),
            len_bytes: 10,
            missing_bytes: 10,
            sha256: sha256.map(str::to_owned),
        };
        let sha256 = "ab".repeat(32);
        let line = progress(&file(Some(&sha256)), 4);
        assert_eq!(line["status"], "pulling abababababab");
        assert_eq!(line["digest"], format!("sha256:{sha256}"));
        assert_eq!(
            progress(&file(None), 4),
            json!({"status": "pulling m.gguf", "total": 10, "completed": 4})
        );
    }
}
