package cli

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/fleet"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/replay"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/report"
)

// replayOptions are the flags of replay.
type replayOptions struct {
	log     logFlags
	output  output
	policy  string
	against string
	proxies int
	wasm    string
	html    string
}

// AddFlags adds the flags.
func (o *replayOptions) AddFlags(cmd *cobra.Command) {
	addFileFlag(cmd, &o.policy, "policy `FILE`")
	markRequired(cmd, "file")
	flags := cmd.Flags()
	flags.StringVar(&o.against, "against", "",
		"`FILE` of another policy: show which clients it would newly deny or no longer deny")
	flags.IntVar(&o.proxies, "proxies", 1, "`NUMBER` of proxies; requests go to them in turn")
	addWasmFlag(cmd, &o.wasm, "")
	flags.StringVar(&o.html, "html", "", "also write a page with charts to this `FILE`; it names clients")
	o.log.AddFlags(cmd)
	o.output.AddFlags(cmd)
}

func newReplayCommand() *cobra.Command {
	var o replayOptions
	cmd := &cobra.Command{
		Use:   "replay LOG... -f POLICY",
		Short: "Show what a policy would have denied of the requests in access logs",
		Long: `Run the compiled filter over access logs, each line at its own time, and print how
many requests and clients each rule would have denied, and which clients most.

It reads logs of Envoy, Istio, nginx, Apache and others, also in the form that a
container's runtime gives them, or compressed with gzip or zstd; - is standard input.
Several logs are merged by time. A log must have what the policy reads of a request; if
not, the error says how to log it. Counters begin empty.

Clients are printed as the log has them: protect the output as you protect the log.`,
		Example: `  sluice replay access.log -f policy.yaml
  sluice replay access.log*.gz -f policy.yaml --against stricter.yaml
  sluice replay access.log -f policy.yaml --format '[%START_TIME%] %REQ(X-USER-ID)% %RESPONSE_CODE%'
  sluice replay app.json -f policy.yaml --map header:x-user-id=user.id --output json`,
		Args: cobra.MinimumNArgs(1),
		RunE: o.run,
	}
	o.AddFlags(cmd)
	return cmd
}

func (o *replayOptions) run(cmd *cobra.Command, logs []string) error {
	if o.proxies < 1 || o.proxies > maxWorkers {
		return usageError(fmt.Errorf("--proxies %d is not from 1 to %d", o.proxies, maxWorkers), "the default is 1")
	}
	if slices.Contains([]string{o.policy, o.against}, "-") {
		return usageError(errStdin, "give the policy as a file; - among the logs is standard input")
	}
	reads := append(slices.Clip(logs), o.policy, o.against, o.wasm)
	page := written{flag: "--html", name: o.html, mode: 0o600} // like the log, it can be read by the user alone
	return page.with(reads, func(w io.Writer) error { return o.replay(cmd, logs, w) })
}

func (o *replayOptions) replay(cmd *cobra.Command, logs []string, page io.Writer) error {
	r, err := o.log.options(cmd, logs, o.wasm)
	if err != nil {
		return err
	}
	r.Proxies = o.proxies
	r.Policy, err = replayFile(cmd, o.policy)
	if err != nil {
		return err
	}
	if o.against != "" {
		other, err := replayFile(cmd, o.against)
		if err != nil {
			return err
		}
		r.Against = &other
	}
	result, err := replay.Run(cmd.Context(), r)
	if err != nil {
		return logError(err)
	}
	if page != nil {
		if err := report.Write(page, result); err != nil {
			return err
		}
	}
	if o.output == outputJSON {
		return printJSON(cmd.OutOrStdout(), result)
	}
	return report.Text(cmd.OutOrStdout(), result)
}

func replayFile(cmd *cobra.Command, name string) (replay.File, error) {
	text, shown, err := readText(cmd, "policy", name, false)
	return replay.File{Name: shown, Text: text}, err
}

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
		", or a format string of Envoy or nginx (default: detected)")
	flags.StringToStringVar(&l.names, "map", nil,
		"`FIELD=NAME`: the logs call this field of a request NAME, as in header:x-user-id=user or duration_ms=took; "+
			"may be repeated")
	flags.DurationVar(&l.sort, "sort", 30*time.Second, "how far lines may be out of order")
	l.unknown = 0.1
	flags.Var(&l.unknown, "unknown-at-most",
		"share of lines that may be unreadable, or out of order by more than --sort")
}

// options returns what to read, and the filter that runs over it.
func (l *logFlags) options(cmd *cobra.Command, files []string, wasm string) (o replay.Options, err error) {
	o = replay.Options{
		Log: accesslog.Options{
			Names: files, In: cmd.InOrStdin(), Format: l.format, Map: map[string]string{}, Sort: l.sort,
		},
		Unknown: float64(l.unknown), CacheDir: fleet.CacheDir(),
		Warn: func(message string) { fmt.Fprintln(cmd.ErrOrStderr(), message) },
	}
	if l.sort < 0 {
		return o, usageError(fmt.Errorf("--sort %s is below 0", l.sort), "the default is 30s")
	}
	for _, said := range slices.Sorted(maps.Keys(l.names)) {
		field := strings.ToLower(said)
		if o.Log.Map[field] != "" {
			err = fmt.Errorf("%s is given twice", field)
		}
		o.Log.Map[field] = l.names[said]
	}
	if err == nil {
		err = accesslog.CheckMap(o.Log.Map)
	}
	if err != nil {
		return o, usageError(fmt.Errorf("--map: %w", err), "write one such as --map header:x-user-id=user")
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

// suggestOptions are the flags of suggest.
type suggestOptions struct {
	log    logFlags
	output output
	key    []string
	per    []string
	most   share
	wasm   string
}

// AddFlags adds the flags.
func (o *suggestOptions) AddFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&o.key, "key", nil, "`PART` of the key that tells clients apart: "+
		strings.Join(replay.KeyForms(), ", ")+"; may be repeated")
	markRequired(cmd, "key")
	flags.StringSliceVar(&o.per, "per", []string{"1m", "1h"}, "`PERIODS` to find limits for")
	o.most = 0.001
	flags.Var(&o.most, "deny-at-most", "share of requests, and of clients, that the limits may deny")
	addWasmFlag(cmd, &o.wasm, "")
	o.log.AddFlags(cmd)
	o.output.AddFlags(cmd)
}

func newSuggestCommand() *cobra.Command {
	var o suggestOptions
	cmd := &cobra.Command{
		Use:   "suggest LOG... --key PART",
		Short: "Suggest limits that the requests in access logs would have stayed within",
		Long: `Read access logs, count what each client uses in each period, and print a policy in
shadow mode whose limits would have denied no more than a share of the requests and
of the clients. Comments say how much clients use, and what the policy would have
denied, as the compiled filter decides. Up to a third of the clients may be left out as
abusers, because they use far more than all others: they do not raise the limits, and
comments name them.

Use is counted in periods aligned to the clock, as a fixed_window counts, and limits are
rounded up to two digits. The logs are read twice. sluice replay --help says which logs
can be read.`,
		Example: `  sluice suggest access.log --key header:x-user-id > shadow.yaml
  sluice suggest access.log*.gz --key client_ip --per 1s,1m,1h --deny-at-most 0.01%
  sluice replay access.log -f shadow.yaml`,
		Args: cobra.MinimumNArgs(1),
		RunE: o.run,
	}
	o.AddFlags(cmd)
	return cmd
}

func (o *suggestOptions) run(cmd *cobra.Command, logs []string) error {
	read, err := o.log.options(cmd, logs, o.wasm)
	if err != nil {
		return err
	}
	s, err := replay.Suggest(cmd.Context(), replay.SuggestOptions{
		Options: read, Key: o.key, Periods: o.per, Most: float64(o.most),
	})
	var problems policyfile.Errors
	switch {
	case errors.As(err, &problems):
		return usageError(err, "--key and --per are as a policy has them: --key header:x-user-id --per 1m,1h")
	case err != nil:
		return logError(err)
	}
	if o.output == outputJSON {
		return printJSON(cmd.OutOrStdout(), s)
	}
	return report.Policy(cmd.OutOrStdout(), s)
}
