use super::*;

/// Hands out a few bytes at a time, as pipes do.
struct Dribble(Vec<u8>, usize);

impl Read for Dribble {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = into.len().min(5).min(self.0.len() - self.1);
        into[..n].copy_from_slice(&self.0[self.1..][..n]);
        self.1 += n;
        Ok(n)
    }
}

fn read(bytes: &[u8], format: &Format, channel: Channel) -> Result<Vec<f32>, SourceError> {
    let mut source = Source::new(Box::new(Dribble(bytes.to_vec(), 0)), format, channel)?;
    let mut out = Vec::new();
    while source.read(&mut out)? {}
    Ok(out)
}

fn wav(tag: u16, bits: u16, channels: u16, data_len: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"RIFF\0\0\0\0WAVELIST\x03\0\0\0abc\0fmt \x10\0\0\0".to_vec();
    bytes.extend(tag.to_le_bytes());
    bytes.extend(channels.to_le_bytes());
    bytes.extend(16_000u32.to_le_bytes());
    bytes.extend([0; 6]);
    bytes.extend(bits.to_le_bytes());
    bytes.extend(b"data");
    bytes.extend(data_len.to_le_bytes());
    bytes.extend(data);
    bytes
}

#[test]
fn wav_of_every_encoding() {
    let cases: [(u16, u16, &[u8]); 6] = [
        (1, 8, &[0, 64, 128, 192]),
        (1, 16, &[0, 0x80, 0, 0xc0, 0, 0, 0, 0x40]),
        (1, 24, &[0, 0, 0x80, 0, 0, 0xc0, 0, 0, 0, 0, 0, 0x40]),
        (
            1,
            32,
            &[0, 0, 0, 0x80, 0, 0, 0, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0x40],
        ),
        (
            3,
            32,
            &[0, 0, 0x80, 0xbf, 0, 0, 0, 0xbf, 0, 0, 0, 0, 0, 0, 0, 0x3f],
        ),
        (
            3,
            64,
            &[
                0, 0, 0, 0, 0, 0, 0xf0, 0xbf, 0, 0, 0, 0, 0, 0, 0xe0, 0xbf, 0, 0, 0, 0, 0, 0, 0, 0,
                0, 0, 0, 0, 0, 0, 0xe0, 0x3f,
            ],
        ),
    ];
    for (tag, bits, data) in cases {
        let len = u32::try_from(data.len()).unwrap();
        // What is behind the data is not samples; a pipe's header does not know the length.
        for (said, behind) in [(len, &b"LISTjunk"[..]), (0, b""), (u32::MAX, b"")] {
            let bytes = wav(tag, bits, 1, said, &[data, behind].concat());
            let samples = read(&bytes, &Format::Wav, Channel::Mean).unwrap();
            assert_eq!(samples, [-1.0, -0.5, 0.0, 0.5], "{tag} {bits} {said}");
        }
        let bytes = wav(tag, bits, 2, len, data);
        let of = |channel| read(&bytes, &Format::Wav, channel).unwrap();
        assert_eq!(of(Channel::Mean), [-0.75, 0.25]);
        assert_eq!(of(Channel::One(1)), [-0.5, 0.5]);
    }
}

#[test]
fn what_is_wrong_is_named() {
    let message = |bytes: &[u8], format: &Format, channel| {
        read(bytes, format, channel).unwrap_err().to_string()
    };
    let mean = Channel::Mean;
    let good = wav(1, 16, 1, 4, &[1, 2, 3, 4]);
    for (bytes, expected) in [
        (&b""[..], "shorter"),
        (b"RIFFabcdAVI LIST    ", "RIFF and WAVE"),
        (&good[..40], "cut short"),
        (&good[..12], "no data"),
        (&good[..good.len() - 2], "2 bytes of the samples"),
        (&good[..good.len() - 1], "1 bytes into a sample"),
        (&wav(1, 12, 1, 0, &[]), "12 bits"),
        (&wav(85, 16, 1, 0, &[]), "0x55"),
        (&wav(1, 16, 0, 0, &[]), "without channels"),
    ] {
        let found = message(bytes, &Format::Wav, mean);
        assert!(found.contains(expected), "{found:?} {expected:?}");
    }
    for end in 0..good.len() {
        assert!(read(&good[..end], &Format::Wav, mean).is_err(), "{end}");
    }
    let found = message(&good, &Format::Wav, Channel::One(1));
    assert!(
        found.contains("channel 1") && found.contains("there are 1"),
        "{found}"
    );
    let csv = |column: &str| Format::Csv {
        column: Some(column.into()),
    };
    assert!(message(b"a,b\n1,2\n", &csv("c"), mean).contains("\"c\""));
    assert!(message(b"a,b\n1,2\n1,x\n", &csv("b"), mean).contains("line 3: \"x\""));
    assert!(message(b"a,b\n1,2\n1\n", &csv("2"), mean).contains("line 3 has no column 2"));
}

#[test]
fn raw_numbers_and_columns() {
    let f32s: Vec<u8> = [1.0f32, f32::NAN, -2.5]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let samples = read(&f32s, &Format::F32 { channels: 1 }, Channel::Mean).unwrap();
    assert_eq!(samples[0].to_bits(), 1f32.to_bits());
    assert!(samples[1].is_nan());
    assert_eq!(samples[2].to_bits(), (-2.5f32).to_bits());
    let samples = read(
        &[0, 0x40, 0, 0xc0],
        &Format::I16 { channels: 2 },
        Channel::One(1),
    );
    assert_eq!(samples.unwrap(), [-0.5]);
    // -2048 and 2047, then 1 and -1.
    let packed = [0x00, 0x78, 0xff, 0x01, 0xf0, 0xff];
    let samples = read(&packed, &Format::Wfdb212 { channels: 1 }, Channel::Mean).unwrap();
    assert_eq!(
        samples,
        [-1.0, 2047.0 / 2048.0, 1.0 / 2048.0, -1.0 / 2048.0]
    );
    for (text, column, expected) in [
        ("1\n2\n3", None, vec![1.0, 2.0, 3.0]),
        ("t;v\n0;5\n\n1;6\n", Some("v"), vec![5.0, 6.0]),
        ("0\t5\n1\t6\n", Some("2"), vec![5.0, 6.0]),
        ("\"a\", \"b\"\n1, 2\n", Some("b"), vec![2.0]),
        ("", None, vec![]),
    ] {
        let format = Format::Csv {
            column: column.map(str::to_owned),
        };
        assert_eq!(
            read(text.as_bytes(), &format, Channel::Mean).unwrap(),
            expected,
            "{text:?}"
        );
    }
}

#[test]
fn an_end_between_the_channels_is_an_error_that_says_where() {
    let bytes = [0u8; 2 * (3 * 5 + 2)];
    let format = Format::I16 { channels: 3 };
    for channel in [Channel::Mean, Channel::One(1)] {
        let error = read(&bytes, &format, channel).unwrap_err();
        let expected = "it ends after 2 of the 3 channels' samples";
        assert_eq!(error.to_string(), expected, "{channel:?}");
        assert_eq!(read(&bytes[..2 * 15], &format, channel).unwrap().len(), 5);
    }
    // What was read before it is not lost.
    let mut source = Source::new(Box::new(Dribble(bytes.to_vec(), 0)), &format, Channel::Mean);
    let source = source.as_mut().unwrap();
    let mut out = Vec::new();
    while source.read(&mut out).unwrap_or(false) {}
    assert_eq!(out.len(), 5);
    // Nine samples of three channels are ten in format 212.
    let format = Format::Wfdb212 { channels: 3 };
    assert_eq!(read(&[0; 15], &format, Channel::Mean).unwrap().len(), 3);
    assert!(read(&[0; 12], &format, Channel::Mean).is_err());
}
