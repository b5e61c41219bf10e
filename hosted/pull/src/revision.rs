//! The contents of a repository, as the hub describes them.

use crate::repo::is_commit;
use serde::Deserialize;

/// The contents of a repository at a commit.
#[derive(Clone, Debug)]
pub struct Revision {
    /// The commit: 40 hexadecimal digits.
    pub commit: String,
    /// Its files, in the order that the server lists them.
    pub files: Vec<RemoteFile>,
}

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    /// Its path in the repository.
    pub path: String,
    /// Its length in bytes, if the server gave it.
    pub len_bytes: Option<u64>,
    /// Its blob name: the SHA-256 of a large file, the Git object ID of a small one.
    pub etag: Option<String>,
}

impl Revision {
    /// Parses the hub's description of a revision, in JSON.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let info: Info = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if !is_commit(&info.sha) {
            return Err(format!("{:?} is not a commit", info.sha));
        }
        let has_control = |file: &&Sibling| file.rfilename.contains(char::is_control);
        if let Some(file) = info.siblings.iter().find(has_control) {
            return Err(format!(
                "the file name {:?} has control characters",
                file.rfilename
            ));
        }
        Ok(Self {
            commit: info.sha.to_ascii_lowercase(),
            files: info.siblings.into_iter().map(RemoteFile::from).collect(),
        })
    }
}

#[derive(Deserialize)]
struct Info {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
}

impl From<Sibling> for RemoteFile {
    fn from(sibling: Sibling) -> Self {
        Self {
            path: sibling.rfilename,
            len_bytes: sibling.size,
            etag: sibling.lfs.map(|lfs| lfs.sha256).or(sibling.blob_id),
        }
    }
}
