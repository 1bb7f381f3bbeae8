package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
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
	addFileFlag(cmd, &o.policy, "policy `FILE` (required)")
	_ = cmd.MarkFlagRequired("file")
	flags := cmd.Flags()
	flags.StringVar(&o.against, "against", "", "`FILE` of another policy: say whom it would newly deny, and whom no longer")
	_ = cmd.MarkFlagFilename("against", "yaml", "yml", "json")
	flags.IntVar(&o.proxies, "proxies", 1, "`NUMBER` of proxies; requests go to them in turn")
	addWasmFlag(cmd, &o.wasm, "")
	flags.StringVar(&o.html, "html", "", "also write a page with charts to this `FILE`; it names clients")
	_ = cmd.MarkFlagFilename("html", "html")
	o.log.AddFlags(cmd)
	o.output.AddFlags(cmd)
}

func newReplayCommand() *cobra.Command {
	var o replayOptions
	cmd := &cobra.Command{
		Use:   "replay LOG... -f POLICY",
		Short: "Show what a policy would have denied of the requests in access logs",
		Long: `Run the compiled filter over access logs, each line in its own time, and print how
many requests and clients each rule would have denied, and which clients most.

Logs may be of Envoy, Istio, nginx or Apache, packed with gzip or zstd; - is standard
input. Several are merged by time. A log must have what the policy reads of a
request; the error says how to log it. Counters begin empty.

Clients are printed as the log has them: keep the output as you keep the log.`,
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
		return usageError(errors.New("a policy of - is not possible here"),
			"give the policy as a file; - among the logs is standard input")
	}
	return withPage(o.html, func(page io.Writer) error { return o.replay(cmd, logs, page) })
}

// withPage makes the file of --html before logs are read for it, and puts it in its place
// when it is whole. Its readers are those of the log: the user alone.
func withPage(name string, run func(io.Writer) error) error {
	if name == "" {
		return run(nil)
	}
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("write --html: %w", &input.Irregular{Name: name, Mode: info.Mode()})
	}
	page, err := os.CreateTemp(filepath.Dir(name), ".sluice-*.html")
	if err != nil {
		return fmt.Errorf("write --html: %w", err)
	}
	defer os.Remove(page.Name()) // what has not become the page
	if err := errors.Join(run(page), page.Close()); err != nil {
		return err
	}
	if err := os.Rename(page.Name(), name); err != nil {
		return fmt.Errorf("write --html: %w", err)
	}
	return nil
}

func (o *replayOptions) replay(cmd *cobra.Command, logs []string, page io.Writer) error {
	read, err := o.log.options(cmd, logs)
	if err != nil {
		return err
	}
	show, end := progress(cmd)
	defer end()
	r := replay.Options{
		Log: read, Proxies: o.proxies, Unknown: float64(o.log.unknown), CacheDir: compiledFilters(), Progress: show,
		Warn: func(message string) { fmt.Fprintln(cmd.ErrOrStderr(), message) },
	}
	if r.Policy, err = replayFile(cmd, o.policy); err != nil {
		return err
	}
	if o.against != "" {
		other, err := replayFile(cmd, o.against)
		if err != nil {
			return err
		}
		r.Against = &other
	}
	if r.Wasm, err = readFilter(o.wasm); err != nil {
		return err
	}
	result, err := replay.Run(cmd.Context(), r)
	end()
	if err != nil {
		return logError(err)
	}
	if page != nil {
		if err := report.Write(page, result); err != nil {
			return err
		}
	}
	return o.output.print(cmd, result, func(w io.Writer) error { return printReplay(w, result) })
}

func replayFile(cmd *cobra.Command, name string) (replay.File, error) {
	text, shown, err := readText(cmd, "policy", name, false)
	return replay.File{Name: shown, Text: text}, err
}

func printReplay(w io.Writer, r *replay.Report) error {
	printLogStats(w, &r.Log, r.Status.Denied)
	for _, warning := range r.Warnings {
		fmt.Fprintln(w, "warning:", printable.Text(warning))
	}
	if err := printReplayed(w, &r.Outcome, r); err != nil || r.Against == nil {
		return err
	}
	if err := printReplayed(w, r.Against, r); err != nil {
		return err
	}
	enforced := func(r *replay.Rule) *replay.Alone { return &r.Alone }
	shadow := func(r *replay.Rule) *replay.Alone { return &r.ShadowAlone }
	name := " by " + r.Against.Policy
	for _, p := range []struct {
		title    string
		requests int64
		of       *replay.Outcome
		alone    func(*replay.Rule) *replay.Alone
		show     bool
	}{
		{"newly denied" + name, r.Against.Alone, r.Against, enforced, true},
		{"no longer denied" + name, r.Alone, &r.Outcome, enforced, true},
		{"newly denied in shadow" + name, r.Against.ShadowAlone, r.Against, shadow, r.Shadow+r.Against.Shadow > 0},
		{"no longer denied in shadow" + name, r.ShadowAlone, &r.Outcome, shadow, r.Shadow+r.Against.Shadow > 0},
	} {
		if !p.show {
			continue
		}
		fmt.Fprintf(w, "\n%s: %s\n", printable.Text(p.title), counted(p.requests, "request", "requests"))
		for i := range p.of.Rules {
			u := &p.of.Rules[i]
			a := p.alone(u)
			if a.Requests == 0 {
				continue
			}
			fmt.Fprintf(w, "by %s: %s of %s\n", printable.Text(u.Rule),
				counted(a.Requests, "request", "requests"), counted(a.Clients, "client", "clients"))
			if err := printClients(w, u, a.Top); err != nil {
				return err
			}
		}
	}
	return nil
}

// printLogStats prints what was read, and what was left out of it.
func printLogStats(w io.Writer, s *accesslog.Stats, denied int64) {
	fmt.Fprintf(w, "%s from %s to %s%s\n", counted(s.Requests, "request", "requests"),
		moment(accesslog.Time(s.FirstNs)), moment(accesslog.Time(s.LastNs)), answered(s, denied, ""))
	for i, r := range s.Readings {
		// Rotated logs have one format: it is said once.
		same := func(other accesslog.Reading) bool {
			return r.Format == other.Format && maps.Equal(r.Fields, other.Fields)
		}
		if slices.IndexFunc(s.Readings, same) == i {
			fmt.Fprintf(w, "%s is read as %s: %s\n", printable.Text(r.Log), r.Format, printable.Text(namesOf(r.Fields)))
		}
	}
	if s.Unknown > 0 {
		fmt.Fprintf(w, "left out: %s of another format; line %d of %s is %q: %s\n",
			counted(s.Unknown, "line", "lines"), s.Example.Number, printable.Text(s.Example.Log), s.Example.Text,
			printable.Text(s.Example.Why))
		fmt.Fprintln(w, "  --format says what the lines look like, --map what a field is called")
	}
	if s.NoHTTP > 0 {
		fmt.Fprintf(w, "left out: %s of connections that brought no request\n", counted(s.NoHTTP, "line", "lines"))
	}
	if s.Refused > 0 {
		fmt.Fprintf(w, "left out: %s with a path that Envoy answers 400, such as %q\n", counted(s.Refused, "line", "lines"), s.BadPath)
	}
	if s.Unended > 0 {
		fmt.Fprintf(w, "left out: %s without an end\n", counted(s.Unended, "last line", "last lines"))
	}
	if s.Late > 0 {
		fmt.Fprintf(w, "%s further from their place than --sort, and count later than they came\n",
			counted(s.Late, "line stands", "lines stand"))
	}
}

// answered says how many requests were answered 429, if the log says how they were answered.
func answered(s *accesslog.Stats, denied int64, when string) string {
	if s.NoStatus {
		return ""
	}
	return ", " + grouped(denied) + " of them answered 429" + when
}

// namesOf says what a log calls the fields.
func namesOf(fields map[string]string) string {
	var list []string
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		list = append(list, field+" is "+fields[field])
	}
	return strings.Join(list, ", ")
}

func printReplayed(w io.Writer, o *replay.Outcome, r *replay.Report) error {
	fmt.Fprintf(w, "\n%s denies %s (%s)%s\n", printable.Text(o.Policy),
		counted(o.Denied, "request", "requests"), ratio(o.Denied, r.Log.Requests), answered(&r.Log, o.Again, " then, too"))
	if o.Shadow > 0 {
		fmt.Fprintf(w, "its rules in shadow would deny %s more (%s)\n", grouped(o.Shadow), ratio(o.Shadow, r.Log.Requests))
	}
	rows := [][]string{{"RULE", "REQUESTS", "DENIED", "SHARE", "SHADOW", "SHARE", "CLIENTS", "DENIED", "SHARE"}}
	for i := range o.Rules {
		u := &o.Rules[i]
		rows = append(rows, []string{
			u.Rule, grouped(u.Requests), grouped(u.Denied), ratio(u.Denied, u.Requests),
			grouped(u.Shadow), ratio(u.Shadow, u.Requests),
			grouped(u.Clients), grouped(u.DeniedClients), ratio(u.DeniedClients, u.Clients),
		})
	}
	if err := printTable(w, rows); err != nil {
		return err
	}
	for i := range o.Rules {
		u := &o.Rules[i]
		for _, reason := range slices.Sorted(maps.Keys(u.Reasons)) {
			if reason != "limit" && reason != "not_asked" {
				fmt.Fprintf(w, "%s: %s by %s\n", printable.Text(u.Rule), counted(u.Reasons[reason], "decision", "decisions"), reason)
			}
		}
		if u.Uncounted > 0 {
			fmt.Fprintf(w, "%s: %s of further clients than are told apart\n", printable.Text(u.Rule),
				counted(u.Uncounted, "request", "requests"))
		}
		if len(u.Top) > 0 {
			fmt.Fprintf(w, "\nmost denied by %s\n", printable.Text(u.Rule))
			if err := printClients(w, u, u.Top); err != nil {
				return err
			}
		}
	}
	return nil
}

func printClients(w io.Writer, u *replay.Rule, clients []replay.Client) error {
	title := strings.ToUpper(strings.Join(u.Key, ", "))
	rows := [][]string{{cmp.Or(title, "KEY"), "DENIED", "REQUESTS", "SHARE"}}
	for i := range clients {
		c := &clients[i]
		rows = append(rows, []string{
			printable.Cut(replay.KeyText(c.Key), maxKeyBytes), grouped(c.Denied), grouped(c.Requests), ratio(c.Denied, c.Requests),
		})
	}
	return printTable(w, rows)
}

// maxKeyBytes is how much of a key a table shows.
const maxKeyBytes = 80

// counted prints "1 line" or "12,345 lines".
func counted(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return grouped(n) + " " + many
}

// grouped prints a number with its thousands apart.
func grouped(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
