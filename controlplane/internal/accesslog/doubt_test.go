package accesslog_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
)

// A line that is too long is unknown, also when it is among the first of a log that
// cannot be read twice.
func TestALongLineIsUnknown(t *testing.T) {
	content := "2026-01-31T12:00:00Z 200 app\n2026-01-31T12:00:00Z 200 " + strings.Repeat("x", 10<<20) + "\n"
	for _, o := range []accesslog.Options{{Names: []string{file(t, content)}}, {Names: []string{"-"}, In: strings.NewReader(content)}} {
		o.Format, o.Fields = `%START_TIME% %RESPONSE_CODE% %REQ(USER-AGENT)%`, []string{"header:user-agent"}
		all, stats, err := readAll(t, o)
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.EqualValues(t, 1, stats.Unknown)
		require.Equal(t, "it is too long", stats.Example.Why)
	}
}

// A line that a container's runtime has cut into many is read up to the same length; what follows it is read.
func TestALongLineOfAContainer(t *testing.T) {
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

// A byte order mark is none of the first line, packed or not.
func TestAByteOrderMark(t *testing.T) {
	const mark = "\uFEFF"
	object := `{"time":"2026-01-31T12:00:00Z","method":"GET","path":"/","status":200,"remote_addr":"192.0.2.7"}` + "\n"
	for _, content := range []string{mark + combinedLine, mark + object, zipped(t, mark+combinedLine)} {
		all, stats, err := readAll(t, accesslog.Options{Names: []string{file(t, content)}, Fields: append([]string{"client_ip"}, everyField...)})
		require.NoError(t, err)
		require.Zero(t, stats.Unknown)
		require.Len(t, all, 1)
		require.Equal(t, "192.0.2.7", all[0].ClientIP)
	}
	_, _, err := readAll(t, accesslog.Options{Names: []string{file(t, mark)}, Fields: everyField})
	require.ErrorContains(t, err, "has no lines")
}

// A file counts once, however it is named.
func TestALogTwice(t *testing.T) {
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
		_, _, err := readAll(t, accesslog.Options{Names: c.names, In: strings.NewReader(combinedLine), Fields: everyField})
		require.EqualError(t, err, c.want)
	}
	all, _, err := readAll(t, accesslog.Options{Names: []string{"-", one, other}, In: strings.NewReader(combinedLine), Fields: everyField})
	require.NoError(t, err)
	require.Len(t, all, 3)
}

// A log against the order of time has no figures.
func TestALogOutOfOrder(t *testing.T) {
	var lines strings.Builder
	for i := range 1000 {
		at := time.Unix(0, noon).Add(-time.Duration(i) * time.Second).UTC()
		fmt.Fprintf(&lines, `{"start_time":%q,"method":"GET","path":"/"}`+"\n", at.Format(time.RFC3339))
	}
	name := file(t, lines.String())
	_, stats, err := readAll(t, accesslog.Options{Names: []string{name}, Sort: 10 * time.Second})
	require.NoError(t, err)
	require.EqualError(t, stats.CheckOrder(0.1),
		"989 of the first 1000 requests stand further from their place in time than lines are sorted")
	require.NoError(t, stats.CheckOrder(1))
	_, stats, err = readAll(t, accesslog.Options{Names: []string{name}, Sort: time.Hour})
	require.NoError(t, err)
	require.NoError(t, stats.CheckOrder(0))
}

// The grain is that of the coarsest log.
func TestTheGrainOfSeveralLogs(t *testing.T) {
	fine := `{"start_time":"2026-01-31T12:00:00.123Z","method":"GET","path":"/"}` + "\n"
	for _, names := range [][]string{{file(t, fine), file(t, combinedLine)}, {file(t, combinedLine), file(t, fine)}} {
		_, stats, err := readAll(t, accesslog.Options{Names: names})
		require.NoError(t, err)
		require.EqualValues(t, time.Second, stats.GrainNs)
	}
}

// A packed log that ends anywhere before its end is an error; several in one file are
// read to the end of the last.
func TestCutPackedLogs(t *testing.T) {
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
			_, _, err := readAll(t, accesslog.Options{Names: []string{"-"}, In: strings.NewReader(packed[:n]), Fields: everyField})
			require.Error(t, err, n)
			_, _, err = readAll(t, accesslog.Options{Names: []string{"-"}, In: strings.NewReader(packed + packed[:n]), Fields: everyField})
			require.True(t, n == 0 || err != nil, n)
		}
		all, _, err := readAll(t, accesslog.Options{Names: []string{file(t, packed+packed)}, Fields: everyField})
		require.NoError(t, err)
		require.Len(t, all, 80)
	}
}
