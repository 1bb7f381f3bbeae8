package accesslog_test

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
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

func fromStdin(content string) accesslog.Options {
	return accesslog.Options{Names: []string{"-"}, In: strings.NewReader(content), Fields: everyField}
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

func TestLogsThatCannotBeRead(t *testing.T) {
	for name, c := range map[string]struct{ content, want string }{
		"empty":        {"", "has no lines"},
		"text":         {"hello\nworld\n", `has lines of no known format, such as "hello"`},
		"binary":       {strings.Repeat("\x00\x01\xff\x80", 300_000), "has lines of no known format"},
		"no line ends": {combinedLine + strings.Repeat("x", 17<<20), "16777216 bytes without the end of a line"},
		"xz":           {"\xfd7zXZ\x00....", "packed with xz"},
		"half another log": {
			strings.Repeat(combinedLine, 2000) + strings.Repeat("x\n", 30000), "are of another format; line 2001",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := readAll(t, accesslog.Options{Names: []string{file(t, c.content)}, Fields: everyField})
			require.ErrorContains(t, err, c.want)
		})
	}
}

// A value that a log calls query is not the query of a path that lacks it.
func TestOnlyAPathHasAQuery(t *testing.T) {
	log := file(t, `{"start_time":"2026-01-31T12:00:00Z","method":"GET","path_without_query":"/","query":"a=b"}`+"\n")
	_, _, err := readAll(t, accesslog.Options{Names: []string{log}, Fields: []string{accesslog.FieldQuery}})
	require.ErrorContains(t, err, "does not have the field query, which is needed")
}

// Lines stand in the order of completion, and several files at once.
func TestRequestsOfSeveralLogsComeInTheOrderOfTime(t *testing.T) {
	line := func(second, ms int) string {
		const format = `{"start_time":"2026-01-31T12:00:%02d.%03dZ","method":"GET","path":"/%d"}` + "\n"
		return fmt.Sprintf(format, second, ms, 1000*second+ms)
	}
	one := file(t, zipped(t, line(10, 5)+line(9, 0)+line(30, 0)+line(1, 0)+line(31, 0)))
	two := file(t, squeezed(t, line(2, 1)+line(10, 4)+line(12, 0)))
	o := accesslog.Options{Names: []string{one, two}, Fields: []string{"path"}, Sort: 5 * time.Second}
	all, stats, err := readAll(t, o)
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

func TestALogFromStandardInput(t *testing.T) {
	in := strings.Repeat(combinedLine, 3000) + strings.TrimSpace(combinedLine)
	all, stats, err := readAll(t, accesslog.Options{
		Names: []string{"-"}, In: strings.NewReader(in), Fields: everyField,
	})
	require.NoError(t, err)
	require.Len(t, all, 3000)
	require.EqualValues(t, 1, stats.Unended)
	require.EqualValues(t, time.Second, stats.GrainNs)
}

func TestALogFromAPipe(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(name, 0o600))
	wrote := make(chan error)
	go func() { wrote <- os.WriteFile(name, []byte(strings.Repeat(combinedLine, 30_000)), 0o600) }()
	all, _, err := readAll(t, accesslog.Options{Names: []string{name, file(t, combinedLine)}, Fields: everyField})
	require.NoError(t, err)
	require.NoError(t, <-wrote)
	require.Len(t, all, 30_001)
}

// A line that is too long is unknown, also when it is among the first of a log that
// cannot be read twice.
func TestALongLineIsUnknown(t *testing.T) {
	content := "2026-01-31T12:00:00Z 200 app\n2026-01-31T12:00:00Z 200 " + strings.Repeat("x", 10<<20) + "\n"
	for _, name := range []string{file(t, content), "-"} {
		o := accesslog.Options{Names: []string{name}, In: strings.NewReader(content)}
		o.Format, o.Fields = `%START_TIME% %RESPONSE_CODE% %REQ(USER-AGENT)%`, []string{"header:user-agent"}
		all, stats, err := readAll(t, o)
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.EqualValues(t, 1, stats.Unknown)
		require.Equal(t, "it is too long", stats.Example.Why)
	}
}

// A line that a container's runtime has cut into many is read up to the same length; what follows it is read.
func TestALongLineOfAContainerIsReadUpToTheSameLength(t *testing.T) {
	const part = "2026-01-31T12:00:09Z stdout P "
	whole := "2026-01-31T12:00:09Z stdout F " + combinedLine
	for parts, want := range map[int]int{3: 3, 5: 2} {
		long := strings.Replace(combinedLine, "curl", strings.Repeat("x", parts*16<<10), 1)
		var content strings.Builder
		content.WriteString(whole)
		for ; len(long) > 16<<10; long = long[16<<10:] {
			content.WriteString(part + long[:16<<10] + "\n")
		}
		content.WriteString("2026-01-31T12:00:09Z stdout F " + long + whole)
		content.WriteString(strings.Repeat(part+strings.Repeat("y", 16<<10)+"\n", 4000)) // memory for one line
		all, stats, err := readAll(t, accesslog.Options{Names: []string{file(t, content.String())}, Fields: everyField})
		require.NoError(t, err)
		require.Len(t, all, want)
		require.EqualValues(t, 3-want, stats.Unknown)
		require.EqualValues(t, 1, stats.Unended)
	}
}

// A byte order mark is not part of the first line, packed or not.
func TestAByteOrderMarkIsNotOfTheFirstLine(t *testing.T) {
	const mark = "\uFEFF"
	object := `{"time":"2026-01-31T12:00:00Z","method":"GET","path":"/","status":200,"remote_addr":"192.0.2.7"}` + "\n"
	for _, content := range []string{mark + combinedLine, mark + object, zipped(t, mark+combinedLine)} {
		fields := append([]string{"client_ip"}, everyField...)
		all, stats, err := readAll(t, accesslog.Options{Names: []string{file(t, content)}, Fields: fields})
		require.NoError(t, err)
		require.Zero(t, stats.Unknown)
		require.Len(t, all, 1)
		require.Equal(t, "192.0.2.7", all[0].ClientIP)
	}
	_, _, err := readAll(t, accesslog.Options{Names: []string{file(t, mark)}, Fields: everyField})
	require.ErrorContains(t, err, "has no lines")
}

// A file counts once, however it is named.
func TestALogCountsOnce(t *testing.T) {
	one, other := file(t, combinedLine), file(t, combinedLine)
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(one, link))
	for _, c := range []struct {
		names []string
		want  string
	}{
		{[]string{one, other, one}, one + " is given twice: its requests would count twice"},
		{[]string{one, other, link}, one + " and " + link + " are the same file: its requests would count twice"},
		{[]string{"-", one, "-"}, "- is given twice: its requests would count twice"},
	} {
		_, _, err := readAll(t, accesslog.Options{
			Names: c.names, In: strings.NewReader(combinedLine), Fields: everyField,
		})
		require.EqualError(t, err, c.want)
	}
	names := []string{"-", one, other}
	all, _, err := readAll(t, accesslog.Options{Names: names, In: strings.NewReader(combinedLine), Fields: everyField})
	require.NoError(t, err)
	require.Len(t, all, 3)
}

// A log against the order of time has no figures.
func TestALogAgainstTheOrderOfTimeIsAnError(t *testing.T) {
	var lines strings.Builder
	for i := range 1000 {
		at := time.Unix(0, noon).Add(-time.Duration(i) * time.Second).UTC()
		fmt.Fprintf(&lines, `{"start_time":%q,"method":"GET","path":"/"}`+"\n", at.Format(time.RFC3339))
	}
	name := file(t, lines.String())
	_, stats, err := readAll(t, accesslog.Options{Names: []string{name}, Sort: 10 * time.Second})
	require.NoError(t, err)
	require.EqualError(t, stats.CheckOrder(0.1),
		"989 of the first 1000 requests are out of order by more time than lines are sorted")
	require.NoError(t, stats.CheckOrder(1))
	_, stats, err = readAll(t, accesslog.Options{Names: []string{name}, Sort: time.Hour})
	require.NoError(t, err)
	require.NoError(t, stats.CheckOrder(0))
}

// The grain is that of the coarsest log.
func TestTheGrainIsThatOfTheCoarsestLog(t *testing.T) {
	fine := `{"start_time":"2026-01-31T12:00:00.123Z","method":"GET","path":"/"}` + "\n"
	for _, names := range [][]string{{file(t, fine), file(t, combinedLine)}, {file(t, combinedLine), file(t, fine)}} {
		_, stats, err := readAll(t, accesslog.Options{Names: names})
		require.NoError(t, err)
		require.EqualValues(t, time.Second, stats.GrainNs)
	}
}

// A packed log that ends anywhere before its end is an error; several in one file are
// read to the end of the last.
func TestAPackedLogThatIsCutIsAnError(t *testing.T) {
	var lines strings.Builder
	for i := range 40 {
		lines.WriteString(strings.Replace(combinedLine, "curl", fmt.Sprint("curl ", i*7919), 1))
	}
	for _, packed := range []string{zipped(t, lines.String()), squeezed(t, lines.String())} {
		broken := []byte(packed)
		broken[len(broken)-6] ^= 1
		_, _, err := readAll(t, accesslog.Options{Names: []string{file(t, string(broken))}, Fields: everyField})
		require.ErrorContains(t, err, "is damaged")
		_, _, err = readAll(t, accesslog.Options{Names: []string{file(t, packed[:len(packed)/2])}, Fields: everyField})
		require.ErrorContains(t, err, "is cut off: its compressed data has no end")
		for n := range len(packed) {
			_, _, err := readAll(t, fromStdin(packed[:n]))
			require.Error(t, err, n)
			_, _, err = readAll(t, fromStdin(packed+packed[:n]))
			require.True(t, n == 0 || err != nil, n)
		}
		all, _, err := readAll(t, accesslog.Options{Names: []string{file(t, packed+packed)}, Fields: everyField})
		require.NoError(t, err)
		require.Len(t, all, 80)
	}
}

var update = flag.Bool("update", false, "write what comes of the logs of testdata into their files")

// logs reads archives that have logs, each under how it is to be read and before what comes of it.
func logs(t testing.TB, each func(o accesslog.Options, log string, comesTo *txtar.File)) {
	t.Helper()
	buildtest.Archives(t, "testdata/logs/*.txtar", *update, func(files []txtar.File) {
		for i := 0; i < len(files); i += 2 {
			var o accesslog.Options
			require.NoError(t, json.Unmarshal([]byte(files[i].Name), &o), files[i].Name)
			each(o, string(files[i].Data), &files[i+1])
		}
	})
}

func TestLogs(t *testing.T) {
	logs(t, func(o accesslog.Options, log string, comesTo *txtar.File) {
		o.Names = []string{file(t, log)}
		all, stats, err := readAll(t, o)
		comesTo.Data = []byte(strings.ReplaceAll(told(all, len(o.Wanted) > 0, &stats, err), o.Names[0], "access.log"))
	})
}

func claims(r *accesslog.Request) (list [][2]string) {
	for _, c := range r.Claims {
		list = append(list, [2]string{"jwt:" + strings.Join(c.Path, ":"), c.Text})
	}
	return list
}

// told is the requests of a log and what is said of it, or the error.
func told(all []*accesslog.Request, answers bool, stats *accesslog.Stats, err error) string {
	var b strings.Builder
	for _, r := range all {
		fmt.Fprintf(&b, "%s status %d", accesslog.Time(r.Ns).Format("15:04:05.999999999"), r.Status)
		fields := [][2]string{
			{"method", r.Method}, {"path", r.Path}, {"host", r.Host}, {"client_ip", r.ClientIP}, {"route", r.Route},
		}
		for _, f := range slices.Concat(fields, r.Headers, claims(r), r.Properties) {
			if f[1] != "" {
				fmt.Fprintf(&b, ", %s %q", f[0], f[1])
			}
		}
		if answers {
			fmt.Fprintf(&b, ", took %s, received %d, sent %d", time.Duration(r.TookNs), r.Received, r.Sent)
		}
		b.WriteByte('\n')
	}
	err = cmp.Or(err, stats.CheckUnknown(1))
	if err != nil {
		fmt.Fprintln(&b, "error:", err)
		var known *accesslog.Error
		if errors.As(err, &known) && known.Hint != "" {
			fmt.Fprintln(&b, "hint:", known.Hint)
		}
		return b.String()
	}
	for _, r := range stats.Readings {
		fmt.Fprintln(&b, r.Format, r.Fields)
	}
	fmt.Fprintln(&b, "clock of", time.Duration(stats.GrainNs))
	if stats.Example != nil {
		fmt.Fprintf(&b, "%d unknown, line %d: %s\n", stats.Unknown, stats.Example.Number, stats.Example.Why)
	}
	if n := stats.NoHTTP + stats.Refused; n > 0 {
		fmt.Fprintf(&b, "%d no request, %d refused %q\n", stats.NoHTTP, stats.Refused, stats.BadPath)
	}
	if stats.NoStatus {
		b.WriteString("no status\n")
	}
	if stats.Empty != nil {
		fmt.Fprintln(&b, "nowhere:", stats.Empty)
	}
	return b.String()
}

// Of several names that a log does not have, the error is always about the same.
func TestSeveralUnknownNames(t *testing.T) {
	for range 20 {
		_, err := accesslog.Open(t.Context(), accesslog.Options{
			Names: []string{"-"}, In: strings.NewReader("a log\n"), Format: "common",
			Map: map[string]string{"host": "no-host", "path": "no-path", "route": "no-route"},
		})
		require.ErrorContains(t, err, "--map host=no-host: the format has no no-host")
	}
}

func FuzzLines(f *testing.F) {
	logs(f, func(o accesslog.Options, log string, _ *txtar.File) { f.Add(log, o.Format) })
	f.Fuzz(func(t *testing.T, lines, format string) {
		l, err := accesslog.Open(t.Context(), accesslog.Options{
			Names: []string{"-"}, In: strings.NewReader(lines), Format: format,
			Fields: []string{"header:x"}, Map: map[string]string{"header:x": "x"},
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
