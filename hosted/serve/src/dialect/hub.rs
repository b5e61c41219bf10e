//! Names of models on Hugging Face.

use crate::api::LATEST;

/// The name under which a model is downloaded, `hf.co/ORG/REPO[:QUANT]`, if `asked` begins with the hub's address.
pub(super) fn hub_name(asked: &str) -> Option<String> {
    let bare = asked
        .strip_prefix("https://")
        .or_else(|| asked.strip_prefix("http://"))
        .unwrap_or(asked);
    let hosts = ["hf.co/", "huggingface.co/", "www.huggingface.co/"];
    let repo = hosts.iter().find_map(|host| bare.strip_prefix(host))?;
    Some(named(repo))
}

/// The name under which `ORG/REPO[:QUANT]` is downloaded, with the hub's address or without.
pub(super) fn download_name(asked: &str) -> String {
    hub_name(asked).unwrap_or_else(|| named(asked))
}

fn named(repo: &str) -> String {
    let repo = repo.trim_end_matches('/');
    let repo = repo.strip_suffix(LATEST).unwrap_or(repo);
    format!("hf.co/{repo}")
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
            assert_eq!(hub_name(asked).as_deref(), Some(name));
            assert_eq!(download_name(asked), name);
        }
        for asked in ["llama3.2", "library/llama3.2:1b", "registry.ollama.ai/u/m"] {
            assert_eq!(hub_name(asked), None);
        }
        assert_eq!(download_name("u/m:Q4_0"), "hf.co/u/m:Q4_0");
    }
}
