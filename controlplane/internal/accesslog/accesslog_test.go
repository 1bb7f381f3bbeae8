package accesslog_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/envoy/target"
)

var everyField = []string{"method", "path", "status"}

// readAll reads the requests of logs.
func readAll(t *testing.T, o accesslog.Options) ([]*accesslog.Request, accesslog.Stats, error) {
	t.Helper()
	l, err := accesslog.Open(t.Context(), o)
	if err != nil {
		return nil, accesslog.Stats{}, err
	}
	defer l.Close()
	var all []*accesslog.Request
	for {
		r, err := l.Next()
		if errors.Is(err, io.EOF) {
			return all, l.Stats, nil
		}
		if err != nil {
			return nil, l.Stats, err
		}
		all = append(all, r)
	}
}

func file(t *testing.T, content string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "access.log")
	require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
	return name
}

// zipped and squeezed pack a log by gzip and by Zstandard.
func zipped(t *testing.T, content string) string {
	t.Helper()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := io.WriteString(z, content)
	require.NoError(t, errors.Join(err, z.Close()))
	return packed.String()
}

func squeezed(t *testing.T, content string) string {
	t.Helper()
	encoder, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	return string(encoder.EncodeAll([]byte(content), nil))
}

var noon = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC).UnixNano()

const combinedLine = `192.0.2.7 - - [31/Jan/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 12 "-" "curl"` + "\n"

func TestBadLogs(t *testing.T) {
	for name, c := range map[string]struct{ content, want string }{
		"empty":            {"", "has no lines"},
		"text":             {"hello\nworld\n", `has lines of no known format, such as "hello"`},
		"binary":           {strings.Repeat("\x00\x01\xff\x80", 300_000), "has lines of no known format"},
		"no line ends":     {combinedLine + strings.Repeat("x", 17<<20), "16777216 bytes without the end of a line"},
		"xz":               {"\xfd7zXZ\x00....", "packed with xz"},
		"half another log": {strings.Repeat(combinedLine, 2000) + strings.Repeat("x\n", 30000), "are of another format; line 2001"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := readAll(t, accesslog.Options{Names: []string{file(t, c.content)}, Fields: everyField})
			require.ErrorContains(t, err, c.want)
		})
	}
}

// Lines stand in the order of completion, and several files at once.
func TestOrder(t *testing.T) {
	line := func(second, ms int) string {
		return fmt.Sprintf(`{"start_time":"2026-01-31T12:00:%02d.%03dZ","method":"GET","path":"/%d"}`+"\n", second, ms, 1000*second+ms)
	}
	one := file(t, zipped(t, line(10, 5)+line(9, 0)+line(30, 0)+line(1, 0)+line(31, 0)))
	two := file(t, squeezed(t, line(2, 1)+line(10, 4)+line(12, 0)))
	all, stats, err := readAll(t, accesslog.Options{Names: []string{one, two}, Fields: []string{"path"}, Sort: 5 * time.Second})
	require.NoError(t, err)
	var paths []string
	for _, r := range all {
		paths = append(paths, r.Path)
	}
	require.Equal(t, []string{"/2001", "/9000", "/10004", "/10005", "/12000", "/1000", "/30000", "/31000"}, paths)
	require.EqualValues(t, 1, stats.Late)
	require.EqualValues(t, 8, stats.Requests)
	require.EqualValues(t, time.Millisecond, stats.GrainNs)
	require.Equal(t, noon+2001*int64(time.Millisecond), stats.FirstNs)
}

func TestStandardInput(t *testing.T) {
	in := strings.Repeat(combinedLine, 3000) + strings.TrimSpace(combinedLine)
	all, stats, err := readAll(t, accesslog.Options{Names: []string{"-"}, In: strings.NewReader(in), Fields: everyField})
	require.NoError(t, err)
	require.Len(t, all, 3000)
	require.EqualValues(t, 1, stats.Unended)
	require.EqualValues(t, time.Second, stats.GrainNs)
}

func TestPipe(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(name, 0o600))
	wrote := make(chan error)
	go func() { wrote <- os.WriteFile(name, []byte(strings.Repeat(combinedLine, 30_000)), 0o600) }()
	all, _, err := readAll(t, accesslog.Options{Names: []string{name, file(t, combinedLine)}, Fields: everyField})
	require.NoError(t, err)
	require.NoError(t, <-wrote)
	require.Len(t, all, 30_001)
}

func FuzzLines(f *testing.F) {
	logs(f, func(o accesslog.Options, log string, _ *txtar.File) { f.Add(log, o.Format) })
	f.Fuzz(func(t *testing.T, lines, format string) {
		l, err := accesslog.Open(t.Context(), accesslog.Options{
			Names: []string{"-"}, In: strings.NewReader(lines), Format: format, Fields: []string{"header:x"}, Map: map[string]string{"header:x": "x"},
		})
		if err != nil {
			return
		}
		defer l.Close()
		for last := int64(0); ; {
			r, err := l.Next()
			if err != nil {
				return
			}
			require.GreaterOrEqual(t, r.Ns, last)
			last = r.Ns
			if r.Path != "" {
				_, _, err := target.Normalize(r.Path)
				require.NoError(t, err)
			}
		}
	})
}
