package accesslog_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
)

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

// told is the requests of a log and what is said of it, or the error.
func told(all []*accesslog.Request, answers bool, stats *accesslog.Stats, err error) string {
	var b strings.Builder
	for _, r := range all {
		fmt.Fprintf(&b, "%s status %d", accesslog.Time(r.Ns).Format("15:04:05.999999999"), r.Status)
		for _, f := range append([][2]string{{"method", r.Method}, {"path", r.Path}, {"host", r.Host}, {"client_ip", r.ClientIP}, {"route", r.Route}},
			append(r.Headers, r.Values...)...) {
			if f[1] != "" {
				fmt.Fprintf(&b, ", %s %q", f[0], f[1])
			}
		}
		if answers {
			fmt.Fprintf(&b, ", took %s, received %d, sent %d", time.Duration(r.TookNs), r.Received, r.Sent)
		}
		b.WriteByte('\n')
	}
	if err = cmp.Or(err, stats.CheckUnknown(1)); err != nil {
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
