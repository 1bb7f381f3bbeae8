package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
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
	flags := cmd.Flags()
	flags.StringVar(&o.against, "against", "", "`FILE` of another policy: say whom it would newly deny, and whom no longer")
	flags.IntVar(&o.proxies, "proxies", 1, "`NUMBER` of proxies; requests go to them in turn")
	addWasmFlag(cmd, &o.wasm, "")
	flags.StringVar(&o.html, "html", "", "also write a page with charts to this `FILE`; it names clients")
	o.log.AddFlags(cmd)
	o.output.AddFlags(cmd)
}

func newReplayCommand() *cobra.Command {
	var o replayOptions
	return with(&cobra.Command{
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
	}, o.AddFlags)
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
func withPage(name string, run func(io.Writer) error) (err error) {
	if name == "" {
		return run(nil)
	}
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("write --html: %w", &input.Irregular{Name: name, Mode: info.Mode()})
	}
	var failed error // of what is on the page
	err = replaceFile(name, 0o600, func(page io.Writer) error { failed = run(page); return failed })
	if err != nil && failed == nil {
		return fmt.Errorf("write --html: %w", err)
	}
	return err
}

func (o *replayOptions) replay(cmd *cobra.Command, logs []string, page io.Writer) error {
	r, err := o.log.options(cmd, logs, o.wasm)
	if err != nil {
		return err
	}
	r.Proxies = o.proxies
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
	result, err := replay.Run(cmd.Context(), r)
	if err != nil {
		return logError(err)
	}
	if page != nil {
		if err := report.Write(page, result); err != nil {
			return err
		}
	}
	return o.output.print(cmd, result, func(w io.Writer) error { return report.Text(w, result) })
}

func replayFile(cmd *cobra.Command, name string) (replay.File, error) {
	text, shown, err := readText(cmd, "policy", name, false)
	return replay.File{Name: shown, Text: text}, err
}
