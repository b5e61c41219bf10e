//! `POST /api/pull`.

use super::super::drive::body;
use super::super::error::json_reply;
use super::super::fields::Fields;
use super::super::stream::line;
use super::{LINES, error_value};
use crate::answer::{App, Context};
use crate::api::{ApiError, LATEST};
use crate::http::{Request, Response, Source, Step, Stream};
use crate::pulls::{PullState, PullWatch};
use core::pin::Pin;
use core::task::{Context as Waiting, Poll};
use core::time::Duration;
use serde_json::{Value, json};
use sluice_pull::{PullRequest, WantedFile};
use std::sync::Arc;

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
    if models.find(asked).is_ok() || models.adapters().find(asked).is_some() {
        context.check_allowed(Some(asked), &[])?;
        return Ok(there(streams));
    }
    let pulls = context.app.pulls();
    if !pulls.are_allowed() && !context.key.may_pull() {
        return Err(ApiError::forbidden(
            "models are not downloaded: start the server with --allow-pull, or give the key `pull = true` in the file \
             of --keys",
        ));
    }
    let name = name_of(asked)?;
    context.check_name(&name)?;
    let parsed = PullRequest::parse(&name);
    let parsed = parsed.map_err(|error| ApiError::field("model", error.to_string()))?;
    models.check_room()?;
    let watch = pulls.begin(&name, parsed)?;
    let lines = Lines::new(watch, Arc::clone(&context.app));
    if streams {
        return Ok(Stream::reply(lines, LINES, Duration::ZERO));
    }
    lines.whole().await.map(|()| json_reply(&success()))
}

/// The name under which a model is downloaded and offered: `hf.co/ORG/REPO[:QUANT]`.
fn name_of(asked: &str) -> Result<String> {
    let bare = asked
        .strip_prefix("https://")
        .or_else(|| asked.strip_prefix("http://"))
        .unwrap_or(asked);
    let hosts = ["hf.co/", "huggingface.co/", "www.huggingface.co/"];
    let repo = hosts.iter().find_map(|host| bare.strip_prefix(host));
    let repo = repo.ok_or_else(|| {
        let shown: String = asked.chars().take(200).collect();
        let what = format!(
            "{shown:?} is not a model of Hugging Face: only those are downloaded, named hf.co/ORG/REPO[:QUANT]"
        );
        ApiError::field("model", what)
    })?;
    let repo = repo.trim_end_matches('/');
    let repo = repo.strip_suffix(LATEST).unwrap_or(repo);
    Ok(format!("hf.co/{repo}"))
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
    app: Arc<App>,
    /// Bytes of each file that were reported.
    reported: Vec<u64>,
}

type Next = Pin<Box<dyn Future<Output = (PullState, PullWatch)> + Send>>;

impl Lines {
    fn new(watch: PullWatch, app: Arc<App>) -> Self {
        Self {
            next: Box::pin(state(watch)),
            app,
            reported: Vec::new(),
        }
    }

    /// Waits for the end.
    async fn whole(mut self) -> Result<()> {
        loop {
            let (state, watch) = (&mut self.next).await;
            match state {
                PullState::Done(_) => return self.offer(&state),
                PullState::Failed(error) => return Err(error),
                _ => self.next = Box::pin(change(watch)),
            }
        }
    }

    /// Offers what was downloaded.
    fn offer(&self, state: &PullState) -> Result<()> {
        match state {
            PullState::Done(model) => self.app.models().add(&model.name, &model.path),
            _ => Ok(()),
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
            PullState::Done(_) => {
                match self.offer(state) {
                    Ok(()) => {
                        // Each file was checked when its last byte had arrived.
                        line(text, &json!({"status": "verifying sha256 digest"}));
                        line(text, &json!({"status": "writing manifest"}));
                        line(text, &success());
                    }
                    Err(error) => line(text, &error_value(&error)),
                }
                return true;
            }
        }
        false
    }

    /// Writes how much of each file is there, where that is more than before.
    fn progress(&mut self, files: &[WantedFile], done_bytes: u64, text: &mut String) {
        self.reported.resize(files.len(), 0);
        let mut left = done_bytes;
        for (file, reported) in files.iter().zip(&mut self.reported) {
            let completed = left.min(file.len_bytes);
            left -= completed;
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
    fn names_are_those_of_hugging_face() {
        for (asked, name) in [
            ("hf.co/u/m", "hf.co/u/m"),
            ("hf.co/u/m:latest", "hf.co/u/m"),
            ("huggingface.co/u/m:Q4_0", "hf.co/u/m:Q4_0"),
            ("https://hf.co/u/m/", "hf.co/u/m"),
        ] {
            assert_eq!(name_of(asked).unwrap(), name);
        }
        for asked in ["llama3.2", "library/llama3.2:1b", "registry.ollama.ai/u/m"] {
            let error = name_of(asked).unwrap_err();
            assert_eq!(error.field.as_deref(), Some("model"));
        }
    }

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
