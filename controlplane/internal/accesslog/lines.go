package accesslog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

const (
	maxLineBytes  = 64 << 10 // of a line that is read
	endlessBytes  = 16 << 20 // of a line that is too long for any log
	maxZstdWindow = 128 << 20
)

// lines reads the lines of one file.
type lines struct {
	name  string
	close []func()
	in    *bufio.Reader // of sampleBytes
	again bool          // it can be read more than once
}

// openLines opens a file, or takes standard input for -, and undoes the compression.
func openLines(ctx context.Context, name string, stdin io.Reader) (*lines, error) {
	l := &lines{name: name}
	raw, err := l.open(ctx, stdin)
	if err == nil {
		err = l.decompress(bufio.NewReader(raw))
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// open returns what the file has. It may be a pipe.
func (l *lines) open(ctx context.Context, stdin io.Reader) (io.Reader, error) {
	if l.name == "-" {
		l.name = "standard input"
		return input.Until(ctx, stdin), nil
	}
	f, err := input.Open(ctx, l.name)
	if err != nil {
		return nil, err
	}
	l.close = append(l.close, func() { _ = f.Close() })
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, &input.Irregular{Name: l.name, Mode: fs.ModeDir}
	case info.Mode().IsRegular():
		l.again = true
		return f, nil
	}
	return input.Until(ctx, f), nil
}

// magics are the first bytes of files that are packed in a way that is not undone.
var magics = []struct{ bytes, what string }{
	{"BZh", "bzip2: unpack it first, as with bzip2 -d"},
	{"\xfd7zXZ\x00", "xz: unpack it first, as with xz -d"},
	{"PK\x03\x04", "a zip archive: unpack it first"},
}

func (l *lines) decompress(raw *bufio.Reader) error {
	head, err := raw.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read %s: %w", l.name, err)
	}
	for _, m := range magics {
		if bytes.HasPrefix(head, []byte(m.bytes)) {
			return fmt.Errorf("%s is packed with %s", l.name, m.what)
		}
	}
	unpacked := io.Reader(raw)
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(raw)
		if err != nil {
			return l.failed(err)
		}
		unpacked = z
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(raw, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxZstdWindow))
		if err != nil {
			return l.failed(err)
		}
		l.close = append(l.close, z.Close)
		unpacked = z
	}
	l.in = bufio.NewReaderSize(unpacked, sampleBytes)
	if mark, _ := l.in.Peek(len(byteOrderMark)); string(mark) == byteOrderMark {
		_, _ = l.in.Discard(len(byteOrderMark))
	}
	return nil
}

// byteOrderMark is what editors of Windows put before a text in UTF-8.
const byteOrderMark = "\uFEFF"

// failed is the error of a read.
func (l *lines) failed(err error) error {
	switch {
	case errors.Is(err, input.ErrInterrupted):
		return err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%s is cut off: its compressed data has no end", l.name)
	}
	return fmt.Errorf("%s is damaged: %w", l.name, err)
}

// Close closes the file.
func (l *lines) Close() {
	if l != nil {
		for _, c := range l.close {
			c()
		}
		l.close = nil
	}
}

// Why a line is left out that could not be read whole.
var (
	errLong    = errors.New("it is too long")
	errUnended = errors.New("it is the last, and has no end") // its writer has not finished it, or the file is cut off
)

// sample returns the whole lines at the begin that are not blank. They are still to come.
func (l *lines) sample() (lines []string, err error) {
	begin, err := l.in.Peek(sampleBytes)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, l.failed(err)
	}
	for line := range strings.Lines(string(begin)) {
		line, ended := strings.CutSuffix(line, "\n")
		if len(lines) == sampleLines || len(lines) > 0 && !ended && err == nil {
			break
		}
		line = strings.TrimSuffix(line, "\r")
		if strings.TrimSpace(line) != "" {
			lines = append(lines, line[:min(len(line), maxLineBytes)])
		}
	}
	return lines, nil
}

// next returns the next line, or the begin of a line that is too long. A reason says why the line is
// not whole. An err ends the file: io.EOF is its regular end.
func (l *lines) next() (line string, reason, err error) {
	read, err := l.in.ReadSlice('\n')
	switch {
	case err == nil && len(read) > maxLineBytes:
		return string(read[:maxLineBytes]), errLong, nil
	case err == nil:
		return string(bytes.TrimSuffix(read[:len(read)-1], []byte("\r"))), nil, nil
	case errors.Is(err, bufio.ErrBufferFull):
		return string(read[:maxLineBytes]), errLong, l.skip()
	case errors.Is(err, io.EOF) && len(read) == 0:
		return "", nil, io.EOF
	case errors.Is(err, io.EOF):
		return "", errUnended, nil
	}
	return "", nil, l.failed(err)
}

// skip goes over the rest of a line that is too long.
func (l *lines) skip() error {
	for n := 0; n < endlessBytes; {
		line, err := l.in.ReadSlice('\n')
		n += len(line)
		switch {
		case err == nil, errors.Is(err, io.EOF):
			return nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return l.failed(err)
		}
	}
	return fmt.Errorf("%s has %d bytes without the end of a line: it is not an access log", l.name, endlessBytes)
}

// container takes the lines of a server out of the log that a container's runtime keeps of its
// output. The runtime writes each line into one of its own, and a long line into several.
type container struct {
	name string // of the runtime's format
	cut  func(line string) (part, bool)

	begun map[string]string // by output, the line that goes on
}

// part is what a runtime's line has of a server's line.
type part struct {
	output string // stdout or stderr
	text   string
	isLast bool // the server's line ends with it
}

// containerOf returns the runtime whose format most of the lines have, nil = none. There are two:
// containerd and CRI-O write the format of the Kubernetes CRI to /var/log/pods/*/*/*.log, and Docker
// writes json-file.
func containerOf(sample []string) *container {
	for _, c := range []*container{{name: "cri", cut: cutCRI}, {name: "json-file", cut: cutJSONFile}} {
		isCut := func(line string) bool { _, ok := c.cut(line); return ok }
		if 2*countLines(sample, isCut) > len(sample) {
			c.begun = map[string]string{}
			return c
		}
	}
	return nil
}

// Why no line of the server's ends with a line of the runtime's.
var (
	errGoesOn      = errors.New("the line goes on")
	errNoContainer = errors.New("the container's runtime wrote the other lines, but not this one")
)

// unwrap returns the server's line that ends with a line of the runtime's. A reason says why there is
// none, or why it is not whole.
func (c *container) unwrap(line string) (text string, reason error) {
	p, ok := c.cut(line)
	if !ok {
		return line, errNoContainer
	}
	whole := c.begun[p.output] + p.text
	if !p.isLast {
		c.begun[p.output] = whole[:min(len(whole), maxLineBytes+1)]
		return "", errGoesOn
	}
	delete(c.begun, p.output)
	if len(whole) > maxLineBytes {
		return whole[:maxLineBytes], errLong
	}
	return whole, nil
}

// unwrapAll returns the server's lines that are in a runtime's lines.
func (c *container) unwrapAll(lines []string) (unwrapped []string) {
	for _, line := range lines {
		if text, reason := c.unwrap(line); reason == nil && strings.TrimSpace(text) != "" {
			unwrapped = append(unwrapped, text)
		}
	}
	clear(c.begun)
	return unwrapped
}

// cutCRI reads 2026-01-31T12:00:00.123456789Z stdout F text. The tag P says that the line goes on.
func cutCRI(line string) (p part, ok bool) {
	at, rest, _ := strings.Cut(line, " ")
	output, rest, _ := strings.Cut(rest, " ")
	tags, text, _ := strings.Cut(rest, " ")
	tag, _, _ := strings.Cut(tags, ":")
	if !isOutput(output) || tag != "F" && tag != "P" {
		return part{}, false
	}
	_, ok = rfc3339(at)
	return part{output, text, tag == "F"}, ok
}

// cutJSONFile reads {"log":"text\n","stream":"stdout","time":"2026-01-31T12:00:00.123456789Z"}.
// Without \n the line goes on.
func cutJSONFile(line string) (p part, ok bool) {
	if !strings.HasPrefix(line, `{"log":`) {
		return part{}, false
	}
	n, err := policy.ParseJSON(line)
	if err != nil {
		return part{}, false
	}
	for _, field := range n.Fields {
		switch field.Name {
		case "log":
			p.text = field.Value.Text
		case "stream":
			p.output = field.Value.Text
		}
	}
	p.text, p.isLast = strings.CutSuffix(p.text, "\n")
	p.text = strings.TrimSuffix(p.text, "\r")
	return p, isOutput(p.output)
}

// isOutput bounds how many lines go on at once.
func isOutput(name string) bool { return name == "stdout" || name == "stderr" }
