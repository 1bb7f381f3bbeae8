package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
)

// applyOptions are the flags of apply.
type applyOptions struct {
	serverOptions
	files  []string
	wasm   *string // nil: the one in force stays
	wait   waitOptions
	canary canaryOptions
}

// AddFlags adds the flags.
func (o *applyOptions) AddFlags(cmd *cobra.Command) {
	o.serverOptions.AddFlags(cmd)
	f := cmd.Flags()
	f.StringArrayVarP(&o.files, "file", "f", nil,
		"policy `FILE`, - for standard input; may be repeated")
	markRequired(cmd, "file")
	f.Func("wasm", "absolute `PATH` of the filter's binary on the proxies' machines; it replaces the path of the node "+
		"and of serve --wasm (default: the one in force stays)",
		func(path string) error {
			o.wasm = &path
			return nil
		})
	o.wait.AddFlags(cmd)
	o.canary.AddFlags(cmd)
}

// canaryOptions say which part of a policy's proxies gets a revision first. The control plane
// checks them.
type canaryOptions struct {
	share         string         // empty: all proxies
	promoteAfter  *time.Duration // nil: not by itself
	maxDenied     string
	abortOnDenied bool
}

// AddFlags adds the flags. A share that is empty, as of a shell variable that is not set, must
// not become the revision of all proxies.
func (o *canaryOptions) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Func("canary",
		"`SHARE` of the policy's proxies that get the revision until it is promoted or aborted, such as 10%",
		notEmpty(&o.share))
	f.Func("promote-after", "promote the canary after this `TIME` under watch, from 1s, if no "+
		"proxy has rejected it, none of their filters has crashed, and no rule denies too much there",
		func(text string) error {
			after, err := time.ParseDuration(text)
			o.promoteAfter = &after
			return err
		})
	f.Func("max-denied", "`SHARE` of requests that a rule may deny on the canary, above its share on the other "+
		"proxies (default 2%); above it, after 100 requests, the canary stalls",
		notEmpty(&o.maxDenied))
	f.BoolVar(&o.abortOnDenied, "abort-on-denied", false,
		"abort the canary if a rule denies too much there, instead of letting it stall")
}

// notEmpty makes a flag that takes a text.
func notEmpty(value *string) func(string) error {
	return func(text string) error {
		if text == "" {
			return errors.New("it is empty")
		}
		*value = text
		return nil
	}
}

// query is the canary as the API takes it, empty without one.
func (o *canaryOptions) query() url.Values {
	query := url.Values{}
	if o.share != "" {
		query.Set("canary", o.share)
	}
	if o.promoteAfter != nil {
		query.Set("promote_after", o.promoteAfter.String())
	}
	if o.maxDenied != "" {
		query.Set("max_denied", o.maxDenied)
	}
	if o.abortOnDenied {
		query.Set("abort_on_denied", strconv.FormatBool(true))
	}
	return query
}

// text says what the revision is a canary of, and when that ends.
func (o *canaryOptions) text() string {
	if o.share == "" {
		return ""
	}
	text := " as a canary of " + o.share
	if o.promoteAfter != nil {
		text += ", will be promoted after " + o.promoteAfter.String() + " unless it stalls"
	} else {
		text += ", until sluice promote or sluice abort"
	}
	if o.abortOnDenied {
		text += "; it is aborted by itself if a rule denies too much"
	}
	return text
}

func newApplyCommand() *cobra.Command {
	var o applyOptions
	cmd := &cobra.Command{
		Use:   "apply -f FILE [-f FILE]...",
		Short: "Store a policy as a new revision and push it to its proxies",
		Long: `Check a policy, store it as a new revision and push it to the connected proxies that its
proxies section selects. A policy without that section is pushed to all proxies that no
other policy selects. If you give several files, all of them become revisions, or none
does. The output says which counters restart, are new or vanish, and what each proxy
replies.

It exits with 1 if a proxy rejects the policy or does not reply in time. A proxy that
rejects a policy keeps its last good one.

With --canary only a part of the policy's proxies get the revision, at least one that is
connected, until sluice promote or sluice abort. Until then apply and rollback of that
policy are rejected. A canary stalls if one of its proxies rejects it or crashes, or if a
rule denies too much there. A stalled canary is not promoted by itself. sluice status
shows what it denies, and what it waits for.`,
		Example: `  sluice apply -f edge.yaml -f inner.yaml --server https://sluice.example:18080 --token-file token
  sluice apply -f policy.yaml --wasm /opt/sluice/sluice-2.wasm   # also change the filter's binary
  sluice apply -f policy.yaml --wasm ''                          # back to the node's own or serve --wasm
  sluice apply -f policy.yaml --canary 10% --promote-after 5m --max-denied 2% --abort-on-denied`,
		RunE: func(cmd *cobra.Command, _ []string) error { return apply(cmd, &o) },
	}
	o.AddFlags(cmd)
	return cmd
}

func apply(cmd *cobra.Command, o *applyOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	c, err := o.client()
	if err != nil {
		return err
	}
	files := make([]policyText, len(o.files))
	for i, file := range o.files {
		files[i], err = readPolicy(cmd, file, true)
		if err != nil {
			return err
		}
	}
	applied, err := c.apply(cmd.Context(), files, o.wasm, o.canary.query())
	if err != nil {
		return err
	}
	r := rollout{client: c, output: o.output, wait: o.wait.timeout, done: "applied" + o.canary.text()}
	return r.run(cmd, applied...)
}

// check rejects flags that do not go together.
func (o *applyOptions) check() error {
	if o.wasm != nil {
		if err := api.CheckWasm(*o.wasm); err != nil {
			return usageError(err, "--wasm is read by Envoy, not by this command")
		}
	}
	if len(o.canary.query()) > 0 && len(o.files) > 1 {
		return usageError(errors.New("--canary is for one policy"), "apply the files one by one")
	}
	return o.wait.check()
}

// apply makes policies revisions: all of them, or none.
func (c *client) apply(ctx context.Context, files []policyText, wasm *string, query url.Values) ([]api.Applied, error) {
	if len(files) > 1 {
		return c.applyChanges(ctx, files, wasm)
	}
	query.Set("file", files[0].name)
	if wasm != nil {
		query.Set("wasm", *wasm)
	}
	body := content{"application/yaml", files[0].text}
	done, err := call[api.Applied](ctx, c, http.MethodPost, "/v1/policies", query, body)
	if err != nil {
		return nil, err
	}
	return []api.Applied{*done}, nil
}

func (c *client) applyChanges(ctx context.Context, files []policyText, wasm *string) ([]api.Applied, error) {
	changes := api.Changes{Wasm: wasm}
	for _, f := range files {
		changes.Policies = append(changes.Policies, api.File{Name: f.name, YAML: string(f.text)})
	}
	body, err := json.Marshal(changes)
	if err != nil {
		return nil, err
	}
	done, err := call[api.AppliedChanges](ctx, c, http.MethodPost, "/v1/changes", nil,
		content{"application/json", body})
	if err != nil {
		return nil, err
	}
	return done.Applied, nil
}

// waitOptions say how long a command waits for the proxies.
type waitOptions struct{ timeout time.Duration }

// AddFlags adds --wait.
func (o *waitOptions) AddFlags(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&o.timeout, "wait", 30*time.Second,
		fmt.Sprintf("how long to wait for the proxies' answers; 0 does not wait; at most %s", api.MaxWait))
}

func (o *waitOptions) check() error {
	if o.timeout < 0 || o.timeout > api.MaxWait {
		return usageError(fmt.Errorf("--wait %s is not from 0 to %s", o.timeout, api.MaxWait), "0 does not wait")
	}
	return nil
}
