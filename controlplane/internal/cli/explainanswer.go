package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// explained is the filter's answer, with times in milliseconds, rounded up.
type explained struct {
	Allowed  *bool           `json:"allowed,omitempty"`
	DeniedBy string          `json:"denied_by,omitempty"`
	RetryMs  *int64          `json:"retry_after_ms,omitempty"` // of a denial; -1 = never
	Rules    []explainedRule `json:"rules,omitempty"`
}

// explainedRule is what one rule has to do with the request. All from Key on is
// of a rule that matches.
type explainedRule struct {
	Rule      string             `json:"rule"`
	Outcome   string             `json:"outcome"`
	Why       string             `json:"why,omitempty"`
	Key       []explainedPart    `json:"key,omitempty"`
	Cost      *uint32            `json:"cost,omitempty"`
	TooLong   bool               `json:"too_long,omitempty"`
	Override  *explainedOverride `json:"override,omitempty"`
	Unlimited bool               `json:"unlimited,omitempty"`
	Mode      string             `json:"mode,omitempty"`
	Allowed   *bool              `json:"allowed,omitempty"`
	Reason    string             `json:"reason,omitempty"`
	Windows   []counterWindow    `json:"windows,omitempty"` // before the request
}

type explainedPart struct {
	Part    string  `json:"part"`
	Value   *string `json:"value,omitempty"`
	Missing bool    `json:"missing,omitempty"`
	Hidden  bool    `json:"hidden,omitempty"`
}

type explainedOverride struct {
	Index int      `json:"index"`
	Key   []string `json:"key"`
}

// explainRow is one proxy and its answer, or what went wrong.
type explainRow struct {
	Proxy    string `json:"proxy"`
	Revision uint64 `json:"revision,omitempty"`
	URL      string `json:"url,omitempty"`
	Error    string `json:"error,omitempty"`
	Hint     string `json:"hint,omitempty"`
	explained
}

// explainReport is what explain prints as JSON: of a file, whose counters are
// empty, or of proxies.
type explainReport struct {
	File string `json:"file,omitempty"`
	explained
	Proxies []explainRow `json:"proxies,omitempty"`
}

func (o *explainOptions) print(cmd *cobra.Command, r explainReport) error {
	w := cmd.OutOrStdout()
	if o.output == outputJSON {
		return printJSON(w, r)
	}
	var b strings.Builder
	if r.File != "" {
		r.print(&b, "")
		b.WriteString("The counters are empty: -f asks no proxy.\n")
	}
	for i, row := range r.Proxies {
		if i > 0 {
			b.WriteByte('\n')
		}
		name := plain(row.Proxy)
		if row.Revision > 0 {
			name += " (revision " + number(row.Revision) + ")"
		}
		if row.Error != "" {
			fmt.Fprintf(&b, "%s: failed: %s\n", name, plain(row.Error))
			continue
		}
		row.print(&b, name+": ")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (x *explained) print(b *strings.Builder, who string) {
	switch {
	case *x.Allowed:
		fmt.Fprintf(b, "%sallowed\n", who)
	case x.RetryMs != nil && *x.RetryMs >= 0:
		fmt.Fprintf(b, "%sdenied by %s, would pass in %s\n", who, plain(x.DeniedBy), span(*x.RetryMs))
	default:
		fmt.Fprintf(b, "%sdenied by %s, and waiting does not help\n", who, plain(x.DeniedBy))
	}
	for i := range x.Rules {
		x.Rules[i].print(b)
	}
}

func (r *explainedRule) print(b *strings.Builder) {
	if r.Outcome != "matches" {
		fmt.Fprintf(b, "  %s: does not apply: %s\n", plain(r.Rule), plain(r.Why))
		return
	}
	fmt.Fprintf(b, "  %s: matches, %s%s\n", plain(r.Rule), r.verdict(), map[string]string{"shadow": " (shadow: never enforced)"}[r.Mode])
	for _, p := range r.Key {
		fmt.Fprintf(b, "    key       %s = %s\n", plain(p.Part), p.text())
	}
	if len(r.Key) == 0 {
		b.WriteString("    key       none: one counter for all\n")
	}
	if r.TooLong {
		b.WriteString("    note      a value is longer than 8 KiB: no regular expression was run on it, and it counts against the client\n")
	}
	if r.Override != nil {
		fmt.Fprintf(b, "    override  overrides[%d], %s\n", r.Override.Index, plain(strings.Join(r.Override.Key, ", ")))
	}
	if r.Unlimited {
		b.WriteString("    limits    none: nothing is counted\n")
		return
	}
	fmt.Fprintf(b, "    cost      %d\n", *r.Cost)
	for _, w := range r.Windows {
		fmt.Fprintf(b, "    limit     %s\n", w.sentence())
	}
}

func (r *explainedRule) verdict() string {
	switch {
	case !*r.Allowed:
		return "denies (" + plain(r.Reason) + ")"
	case r.Reason != "":
		return "allows (" + plain(r.Reason) + ")"
	}
	return "allows"
}

func (p explainedPart) text() string {
	switch {
	case p.Missing:
		return "missing"
	case p.Hidden || p.Value == nil:
		return "hidden: a credential"
	}
	return strconv.Quote(*p.Value)
}

func (w counterWindow) sentence() string {
	name := ""
	if w.Name != "" {
		name = plain(w.Name) + ": "
	}
	per := span(w.PerMs)
	if w.Unlimited || w.Limit == nil || w.Remaining == nil {
		return fmt.Sprintf("%sunlimited per %s, %d used", name, per, w.Used)
	}
	text := fmt.Sprintf("%s%d per %s: %d used, %d left", name, *w.Limit, per, w.Used, *w.Remaining)
	if w.ResetMs > 0 {
		text += ", new in " + span(w.ResetMs)
	}
	return text
}

// span prints milliseconds as a policy has them.
func span(ms int64) string { return policy.FormatDuration(ms * int64(time.Millisecond)) }
