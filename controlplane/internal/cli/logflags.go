package cli

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/replay"
)

// logFlags say how access logs are read.
type logFlags struct {
	format  string
	names   map[string]string
	sort    time.Duration
	unknown share
}

// AddFlags adds the flags.
func (l *logFlags) AddFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&l.format, "format", "", "`FORMAT` of the logs: "+strings.Join(accesslog.FormatNames(), ", ")+
		", or the format itself as Envoy or nginx has it (default: found out)")
	flags.StringToStringVar(&l.names, "map", nil,
		"`FIELD=NAME` under which the logs have a field of a request, as header:x-user-id=user; may be given again")
	flags.DurationVar(&l.sort, "sort", 30*time.Second, "how far from its place in time a line may stand")
	l.unknown = 0.1
	flags.Var(&l.unknown, "unknown-at-most", "share of lines that may be of another format, or too far from their place")
}

// options returns what to read, and the filter that runs over it.
func (l *logFlags) options(cmd *cobra.Command, files []string, wasm string) (o replay.Options, err error) {
	o = replay.Options{
		Log:     accesslog.Options{Names: files, In: cmd.InOrStdin(), Format: l.format, Map: map[string]string{}, Sort: l.sort},
		Unknown: float64(l.unknown), CacheDir: compiledFilters(),
		Warn: func(message string) { fmt.Fprintln(cmd.ErrOrStderr(), message) },
	}
	if l.sort < 0 {
		return o, usageError(fmt.Errorf("--sort %s is below 0", l.sort), "the default is 30s")
	}
	for _, said := range slices.Sorted(maps.Keys(l.names)) {
		field, name := strings.ToLower(said), l.names[said]
		err := accesslog.CheckField(field)
		switch {
		case err != nil:
		case name == "":
			err = fmt.Errorf("%s= has no name behind it", field)
		case o.Log.Map[field] != "":
			err = fmt.Errorf("%s is given twice", field)
		}
		if err != nil {
			return o, usageError(fmt.Errorf("--map: %w", err), "write one such as --map header:x-user-id=user")
		}
		o.Log.Map[field] = name
	}
	o.Wasm, err = readFilter(wasm)
	return o, err
}

// logError adds the way out to an error about a log.
func logError(err error) error {
	var e *accesslog.Error
	if errors.As(err, &e) {
		return withHint(err, printable.Text(printable.Cut(e.Hint, maxHintBytes))) // it has names of the log
	}
	return err
}

const maxHintBytes = 2000

// share is a part of a whole, as 0.1% or 0.001.
type share float64

// String, Set and Type make share a flag's value.
func (s *share) String() string { return strconv.FormatFloat(100*float64(*s), 'g', 3, 64) + "%" }

// Set takes the flag's text.
func (s *share) Set(text string) error {
	number, percent := strings.CutSuffix(text, "%")
	n, err := strconv.ParseFloat(number, 64)
	if percent {
		n /= 100
	}
	if err != nil || !(n >= 0 && n <= 1) {
		return errors.New("must be a share such as 0.1%")
	}
	*s = share(n)
	return nil
}

// Type names the flag's value in help.
func (s *share) Type() string { return "share" }
