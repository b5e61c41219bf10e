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

fn read(
    bytes: &[u8],
    format: &SourceFormat,
    channel: SourceChannel,
) -> Result<Vec<f32>, SignalError> {
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
        // Bytes after the data are not samples; a pipe's header does not know the length.
        for (said, behind) in [(len, &b"LISTjunk"[..]), (0, b""), (u32::MAX, b"")] {
            let bytes = wav(tag, bits, 1, said, &[data, behind].concat());
            let samples = read(&bytes, &SourceFormat::Wav, SourceChannel::Mean).unwrap();
            assert_eq!(samples, [-1.0, -0.5, 0.0, 0.5], "{tag} {bits} {said}");
        }
        let bytes = wav(tag, bits, 2, len, data);
        let of = |channel| read(&bytes, &SourceFormat::Wav, channel).unwrap();
        assert_eq!(of(SourceChannel::Mean), [-0.75, 0.25]);
        assert_eq!(of(SourceChannel::One(1)), [-0.5, 0.5]);
    }
}

#[test]
fn what_is_wrong_is_named() {
    let message = |bytes: &[u8], format: &SourceFormat, channel| {
        read(bytes, format, channel).unwrap_err().to_string()
    };
    let mean = SourceChannel::Mean;
    let good = wav(1, 16, 1, 4, &[1, 2, 3, 4]);
    for (bytes, expected) in [
        (&b""[..], "shorter"),
        (b"RIFFabcdAVI LIST    ", "RIFF and WAVE"),
        (&good[..40], "truncated"),
        (&good[..12], "no data"),
        (&good[..good.len() - 2], "2 bytes of the samples"),
        (&good[..good.len() - 1], "1 bytes into a sample"),
        (&wav(1, 12, 1, 0, &[]), "12 bits"),
        (&wav(85, 16, 1, 0, &[]), "0x55"),
        (&wav(1, 16, 0, 0, &[]), "has no channels"),
    ] {
        let found = message(bytes, &SourceFormat::Wav, mean);
        assert!(found.contains(expected), "{found:?} {expected:?}");
    }
    for end in 0..good.len() {
        assert!(
            read(&good[..end], &SourceFormat::Wav, mean).is_err(),
            "{end}"
        );
    }
    let found = message(&good, &SourceFormat::Wav, SourceChannel::One(1));
    assert!(
        found.contains("channel 1") && found.contains("there are 1"),
        "{found}"
    );
    let csv = |column: &str| SourceFormat::Csv {
        column: Some(column.into()),
    };
    assert!(message(b"a,b\n1,2\n", &csv("c"), mean).contains("\"c\""));
    assert!(message(b"a,b\n1,2\n1,x\n", &csv("b"), mean).contains("line 3: \"x\""));
    assert!(message(b"a,b\n1,2\n1\n", &csv("2"), mean).contains("line 3 has no column 2"));
}

/// A header with chunks of `chunks` and then the data of [`wav`].
fn wav_with(kind: &[u8; 4], chunks: &[u8], data_len: u32, data: &[u8]) -> Vec<u8> {
    let plain = wav(1, 16, 1, data_len, data);
    let head = [&kind[..], &[0xff; 4], b"WAVE", chunks];
    [&head.concat(), &plain[12..]].concat()
}

#[test]
fn lengths_that_nobody_knew_mean_up_to_the_end() {
    for said in [
        0,
        0x7fff_f000,
        0x7fff_ff00,
        0x7fff_0000,
        0x7fff_ffdb,
        0x8000_0000,
        0xffff_f000,
        u32::MAX,
    ] {
        let bytes = wav(1, 16, 1, said, &[0, 0x40, 0, 0xc0]);
        let samples = read(&bytes, &SourceFormat::Wav, SourceChannel::Mean).unwrap();
        assert_eq!(samples, [0.5, -0.5], "{said:#x}");
    }
    let bytes = wav(1, 16, 1, 3 << 30, &[0, 0x40]);
    let error = read(&bytes, &SourceFormat::Wav, SourceChannel::Mean).unwrap_err();
    assert!(matches!(error, SignalError::CutShort { bytes } if bytes == (3 << 30) - 2));
}

#[test]
fn rf64_says_its_length_in_64_bits() {
    let ds64 = |len: u64| {
        let sizes = [len + 100, len, 0].map(u64::to_le_bytes).concat();
        [&b"ds64\x1c\0\0\0"[..], &sizes, &[0; 4]].concat()
    };
    let data = [0, 0x40, 0, 0xc0];
    for (kind, len, behind) in [
        (b"RF64", 4, &b"junk"[..]),
        (b"BW64", 0, b""),
        (b"RIFF", 4, b""),
    ] {
        let bytes = wav_with(kind, &ds64(len), u32::MAX, &[&data, behind].concat());
        let samples = read(&bytes, &SourceFormat::Wav, SourceChannel::Mean).unwrap();
        assert_eq!(samples, [0.5, -0.5]);
    }
    let bytes = wav_with(b"RF64", &ds64(5 << 30), u32::MAX, &data);
    let error = read(&bytes, &SourceFormat::Wav, SourceChannel::Mean).unwrap_err();
    assert!(matches!(error, SignalError::CutShort { bytes } if bytes == (5 << 30) - 4));
}

#[test]
fn headers_end() {
    struct Endless(Vec<u8>, usize);
    impl Read for Endless {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            for byte in into.iter_mut() {
                *byte = self.0.get(self.1).copied().unwrap_or(0);
                self.1 += 1;
            }
            Ok(into.len())
        }
    }
    for (head, named) in [
        (&b"RIFF\0\0\0\0WAVE"[..], "no data chunk"),
        (b"RIFF\0\0\0\0WAVEfmt \xff\xff\xff\xff", "no data chunk"),
        (b"RIFF\0\0\0\0WAVELIST\xff\xff\xff\xff", "no data chunk"),
        (b"RIFX", "RIFX"),
    ] {
        let endless = Endless(head.to_vec(), 0);
        let error =
            Source::new(Box::new(endless), &SourceFormat::Wav, SourceChannel::Mean).unwrap_err();
        assert!(error.to_string().contains(named), "{error}");
    }
    let mut padded = wav(1, 24, 1, 4, &[0; 4]);
    let at = padded.windows(4).position(|four| four == b"data").unwrap() - 4;
    padded[at] = 4;
    let error = read(&padded, &SourceFormat::Wav, SourceChannel::Mean).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("4 bytes for 1 channels of 24 bits"),
        "{error}"
    );
}

#[test]
fn csv_says_what_it_cannot_be_sure_of() {
    let of = |text: &[u8], column: Option<&str>| {
        let column = column.map(str::to_owned);
        read(text, &SourceFormat::Csv { column }, SourceChannel::Mean)
            .map_err(|error| error.to_string())
    };
    for (text, column, named) in [
        (&b"t,v\n0,1\n"[..], None, "2 columns (\"t,v\")"),
        (b"0 1\n0 2\n", None, "2 columns"),
        (
            b"t,v\n0,0,5\n",
            Some("v"),
            "line 2 has 3 fields, but the first line has 2",
        ),
        (b"t;v\n0;0,5\n", Some("v"), "\"0,5\" is not a number"),
        (b"v\n0,5\n", None, "\"0,5\" is not a number"),
        (b"\xff\xfev\0", None, "line 1 is not UTF-8"),
        (b"1\n\xff\n", None, "line 2 is not UTF-8"),
        (b"1\r2\r3\r", None, "carriage return"),
        (b"v\n1\n\"\"\n", None, "line 3: \"\" is not a number"),
    ] {
        let error = of(text, column).unwrap_err();
        assert!(error.contains(named), "{text:?}: {error}");
    }
    for (text, column, expected) in [
        (&b"\xef\xbb\xbf0.5\n0.25\n"[..], None, vec![0.5, 0.25]),
        (b"\xef\xbb\xbfv\r\n1\r\n\r\n2\r\n", None, vec![1.0, 2.0]),
        (b"\xef\xbb\xbft,v\n0,1\n", Some("v"), vec![1.0]),
        (b"t;v\n0,5;1\n", Some("v"), vec![1.0]),
        (b"a,b\n1,2,\n", Some("b"), vec![2.0]),
        (b"# t v\n0  5\n 1 6\n", Some("v"), vec![5.0, 6.0]),
        (b"a\tb\n\t7\n", Some("b"), vec![7.0]),
        (
            b"\"a,b\",\"say \"\"c\"\"\"\n1,2\n",
            Some("say \"c\""),
            vec![2.0],
        ),
        // The first line has no names, so 2 is a place.
        (b"2,3\n4,5\n", Some("2"), vec![3.0, 5.0]),
    ] {
        assert_eq!(of(text, column).as_deref(), Ok(&expected[..]), "{text:?}");
    }
    let endless = io::repeat(b'0');
    let format = SourceFormat::Csv { column: None };
    let error = Source::new(Box::new(endless), &format, SourceChannel::Mean).unwrap_err();
    assert_eq!(error.to_string(), "line 1 exceeds 1 MiB");
}

#[test]
fn raw_numbers_and_columns() {
    let f32s: Vec<u8> = [1.0f32, f32::NAN, -2.5]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let samples = read(
        &f32s,
        &SourceFormat::F32 { channels: 1 },
        SourceChannel::Mean,
    )
    .unwrap();
    assert_eq!(samples[0].to_bits(), 1f32.to_bits());
    assert!(samples[1].is_nan());
    assert_eq!(samples[2].to_bits(), (-2.5f32).to_bits());
    let samples = read(
        &[0, 0x40, 0, 0xc0],
        &SourceFormat::I16 { channels: 2 },
        SourceChannel::One(1),
    );
    assert_eq!(samples.unwrap(), [-0.5]);
    // -2048 and 2047, then 1 and -1.
    let packed = [0x00, 0x78, 0xff, 0x01, 0xf0, 0xff];
    let samples = read(
        &packed,
        &SourceFormat::Wfdb212 { channels: 1 },
        SourceChannel::Mean,
    )
    .unwrap();
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
        let format = SourceFormat::Csv {
            column: column.map(str::to_owned),
        };
        assert_eq!(
            read(text.as_bytes(), &format, SourceChannel::Mean).unwrap(),
            expected,
            "{text:?}"
        );
    }
}

#[test]
fn an_end_between_the_channels_is_an_error_that_says_where() {
    let bytes = [0u8; 2 * (3 * 5 + 2)];
    let format = SourceFormat::I16 { channels: 3 };
    for channel in [SourceChannel::Mean, SourceChannel::One(1)] {
        let error = read(&bytes, &format, channel).unwrap_err();
        let expected = "ends after 2 of the 3 channels' samples";
        assert_eq!(error.to_string(), expected, "{channel:?}");
        assert_eq!(read(&bytes[..2 * 15], &format, channel).unwrap().len(), 5);
    }
    // What was read before it is not lost.
    let mut source = Source::new(
        Box::new(Dribble(bytes.to_vec(), 0)),
        &format,
        SourceChannel::Mean,
    );
    let source = source.as_mut().unwrap();
    let mut out = Vec::new();
    while source.read(&mut out).unwrap_or(false) {}
    assert_eq!(out.len(), 5);
    // Nine samples of three channels are ten in format 212.
    let format = SourceFormat::Wfdb212 { channels: 3 };
    for channel in [
        SourceChannel::Mean,
        SourceChannel::One(0),
        SourceChannel::One(2),
    ] {
        assert_eq!(read(&[0; 15], &format, channel).unwrap().len(), 3);
    }
    assert!(read(&[0; 12], &format, SourceChannel::Mean).is_err());
}
