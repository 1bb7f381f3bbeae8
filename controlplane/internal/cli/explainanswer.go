package cli

import (
	"fmt"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// explainReport is what explain prints as JSON: of a file, whose counters are
// empty, or of proxies.
type explainReport struct {
	File string `json:"file,omitempty"`
	result.Explanation
	Proxies []manage.ExplainRow `json:"proxies,omitempty"`
}

func (r *explainReport) print(b *strings.Builder) {
	if r.File != "" {
		printExplained(b, "", &r.Explanation)
		b.WriteString("The counters are empty: -f asks no proxy.\n")
	}
	for i, row := range r.Proxies {
		if i > 0 {
			b.WriteByte('\n')
		}
		name := printable.Text(row.Proxy)
		if row.Revision > 0 {
			name += " (revision " + number(row.Revision) + ")"
		}
		if row.Error != "" {
			fmt.Fprintf(b, "%s: failed: %s\n", name, printable.Text(row.Error))
			continue
		}
		printExplained(b, name+": ", &row.Explanation)
	}
}

func printExplained(b *strings.Builder, who string, x *result.Explanation) {
	depends := strings.Replace(printable.Text(strings.Join(x.DependsOn, ", ")), "client_ip", "client_ip (--client-ip)", 1)
	switch {
	case depends != "" && x.Allowed == nil:
		fmt.Fprintf(b, "%snot known: it depends on %s, which the description does not give\n", who, depends)
	case depends != "":
		fmt.Fprintf(b, "%sdenied by %s; whether waiting helps depends on %s, which the description does not give\n", who, printable.Text(x.DeniedBy), depends)
	case x.Allowed == nil:
		fmt.Fprintf(b, "%sthe quota service decides\n", who)
	case *x.Allowed:
		fmt.Fprintf(b, "%sallowed\n", who)
	case x.RetryMs != nil && *x.RetryMs >= 0:
		fmt.Fprintf(b, "%sdenied by %s, would pass in %s\n", who, printable.Text(x.DeniedBy), manage.Span(*x.RetryMs))
	default:
		fmt.Fprintf(b, "%sdenied by %s, and waiting does not help\n", who, printable.Text(x.DeniedBy))
	}
	for i := range x.Rules {
		printExplainedRule(b, &x.Rules[i])
	}
}

func printExplainedRule(b *strings.Builder, r *result.ExplainedRule) {
	switch r.Outcome {
	case result.Matches:
	case result.NotKnown:
		fmt.Fprintf(b, "  %s: not known whether it denies: %s\n", printable.Text(r.Rule), printable.Text(r.Why))
		return
	default:
		fmt.Fprintf(b, "  %s: does not apply: %s\n", printable.Text(r.Rule), printable.Text(r.Why))
		return
	}
	fmt.Fprintf(b, "  %s: matches, %s%s\n", printable.Text(r.Rule), verdictText(r), map[string]string{"shadow": " (shadow: not enforced)"}[r.Mode])
	for _, p := range r.Key {
		fmt.Fprintf(b, "    key       %s = %s\n", printable.Text(p.Part), manage.PartText(p))
	}
	if len(r.Key) == 0 {
		b.WriteString("    key       none: one counter for all\n")
	}
	if r.TooLong {
		b.WriteString("    note      a value is longer than 8 KiB: no regular expression was run on it, and it counts against the client\n")
	}
	if r.Override != nil {
		name := r.Override.Name
		if name != "" {
			name += ", "
		}
		fmt.Fprintf(b, "    override  %soverrides[%d], %s\n", printable.Text(name), r.Override.Index, printable.Text(strings.Join(r.Override.Key, ", ")))
	}
	if r.Unlimited {
		b.WriteString("    limits    none: nothing is counted\n")
		return
	}
	fmt.Fprintf(b, "    cost      %d", *r.Cost)
	if r.CostUnreadable {
		b.WriteString(", which is max: an upstream may read the request's number otherwise")
	}
	if r.BodyAssumed != "" {
		fmt.Fprintf(b, ", assuming %s: give a content-length header to change that", printable.Text(r.BodyAssumed))
	}
	b.WriteByte('\n')
	if r.Held != nil {
		fmt.Fprintf(b, "    held      %d until their answers; this request would hold its cost\n", *r.Held)
	}
	for _, w := range r.Windows {
		fmt.Fprintf(b, "    limit     %s\n", windowSentence(w))
	}
	if r.Lease != nil {
		fmt.Fprintf(b, "    lease     %s\n", leaseSentence(r))
	}
}

func verdictText(r *result.ExplainedRule) string {
	switch {
	case r.Allowed == nil:
		return "asks the quota service"
	case !*r.Allowed:
		return "denies (" + printable.Text(r.Reason) + ")"
	case r.Reason != "":
		return "allows (" + printable.Text(r.Reason) + ")"
	}
	return "allows"
}

func windowSentence(w result.Window) string {
	name := ""
	if w.Name != "" {
		name = printable.Text(w.Name) + ": "
	}
	limit := manage.LimitText(&w, "unlimited")
	if w.Unlimited || w.Limit == nil || w.Remaining == nil {
		return fmt.Sprintf("%s%s, %d used", name, limit, w.Used)
	}
	text := fmt.Sprintf("%s%s: %d used, %d left", name, limit, w.Used, *w.Remaining)
	if w.ResetMs > 0 {
		text += ", new in " + manage.Span(w.ResetMs)
	}
	return text
}

// leaseSentence says what the proxy holds, and where the limits' figures are from.
func leaseSentence(r *result.ExplainedRule) string {
	text := "the proxy holds no units"
	if l := r.Lease; l.Units > 0 {
		text = fmt.Sprintf("the proxy holds %d for %s", l.Units, manage.Span(l.EndsMs))
	}
	switch {
	case r.Lease.Silent != "":
		return text + "; " + manage.SilentText(r.Lease.Silent)
	case len(r.Windows) > 0:
		return text + "; the limits are as the quota service has said last"
	case r.Pending:
		return text + "; the quota service has not said yet how the key stands"
	}
	return text
}
