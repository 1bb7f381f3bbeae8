package cli

import (
	"fmt"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/manage"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// explainReport is what explain prints as JSON: of a file, whose counters are empty, or of
// proxies.
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
	for i := range r.Proxies {
		row := &r.Proxies[i]
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

func printExplained(b *strings.Builder, prefix string, x *result.Explanation) {
	b.WriteString(prefix + decisionText(x) + "\n")
	for i := range x.Rules {
		printExplainedRule(b, &x.Rules[i])
	}
}

// decisionText says what becomes of the request.
func decisionText(x *result.Explanation) string {
	denied := "denied by " + printable.Text(x.DeniedBy)
	if len(x.DependsOn) > 0 {
		parts := printable.Text(strings.Join(x.DependsOn, ", "))
		parts = strings.Replace(parts, "client_ip", "client_ip (--client-ip)", 1)
		if x.Allowed == nil {
			return "not known: it depends on " + parts + ", which the description does not give"
		}
		return denied + "; whether waiting helps depends on " + parts + ", which the description does not give"
	}
	switch {
	case x.Allowed == nil:
		return "the quota service decides"
	case *x.Allowed && x.IsUsage:
		return "allowed: the proxy answers with the client's usage"
	case *x.Allowed:
		return "allowed"
	case x.RetryMs != nil && *x.RetryMs >= 0:
		return denied + ", would pass in " + manage.Span(*x.RetryMs)
	}
	return denied + ", and waiting does not help"
}

func printExplainedRule(b *strings.Builder, r *result.ExplainedRule) {
	name := printable.Text(r.Rule)
	switch r.Outcome {
	case result.Matches:
		printMatchingRule(b, name, r)
	case result.NotKnown:
		fmt.Fprintf(b, "  %s: not known whether it denies: %s\n", name, printable.Text(r.Why))
	default:
		fmt.Fprintf(b, "  %s: does not apply: %s\n", name, printable.Text(r.Why))
	}
}

func printMatchingRule(b *strings.Builder, name string, r *result.ExplainedRule) {
	shadow := ""
	if r.Mode == "shadow" {
		shadow = " (shadow: not enforced)"
	}
	fmt.Fprintf(b, "  %s: matches, %s%s\n", name, verdictText(r), shadow)
	printKeyOfRule(b, r)
	if r.Unlimited {
		b.WriteString("    limits    none: nothing is counted\n")
		return
	}
	printCost(b, r)
	if r.Held != nil {
		fmt.Fprintf(b, "    held      %d until their answers; this request would hold its cost\n", *r.Held)
	}
	if r.Charges != "" {
		b.WriteString("    charged   what its answer's tokens cost by the rule's prices\n")
	}
	if r.BlockedMs > 0 {
		fmt.Fprintf(b, "    block     %s\n", manage.BlockedText(r.BlockedMs))
	}
	for i := range r.Windows {
		fmt.Fprintf(b, "    limit     %s\n", windowSentence(&r.Windows[i]))
	}
	if r.Lease != nil {
		fmt.Fprintf(b, "    lease     %s\n", leaseSentence(r))
	}
}

func printKeyOfRule(b *strings.Builder, r *result.ExplainedRule) {
	for _, p := range r.Key {
		fmt.Fprintf(b, "    key       %s = %s\n", printable.Text(p.Part), manage.PartText(p))
	}
	if len(r.Key) == 0 {
		b.WriteString("    key       none: one counter for all\n")
	}
	if r.TooLong {
		b.WriteString("    note      a value is longer than 8 KiB, so no regular expression was run on it: " +
			"it counts against the client\n")
	}
	if o := r.Override; o != nil {
		fullName := ""
		if o.Name != "" {
			fullName = printable.Text(o.Name) + ", "
		}
		fmt.Fprintf(b, "    override  %soverrides[%d], %s\n", fullName, o.Index, printable.Text(strings.Join(o.Key, ", ")))
	}
}

func printCost(b *strings.Builder, r *result.ExplainedRule) {
	fmt.Fprintf(b, "    cost      %d", *r.Cost)
	if r.CostUnreadable {
		b.WriteString(", which is max: an upstream may read the request's number in another way")
	}
	if r.BodyAssumed != "" {
		fmt.Fprintf(b, ", assuming %s: give a content-length header to change that", printable.Text(r.BodyAssumed))
	}
	b.WriteByte('\n')
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

func windowSentence(w *result.Window) string {
	name := ""
	if w.Name != "" {
		name = printable.Text(w.Name) + ": "
	}
	limit := manage.LimitText(w, "unlimited")
	if w.Unlimited || w.Limit == nil || w.Remaining == nil {
		return fmt.Sprintf("%s%s, %d used", name, limit, w.Used)
	}
	text := fmt.Sprintf("%s%s: %d used, %d left", name, limit, w.Used, *w.Remaining)
	if w.ResetMs > 0 {
		text += ", new in " + manage.Span(w.ResetMs)
	}
	return text
}

// leaseSentence says what the proxy holds, and where the figures of the limits come from.
func leaseSentence(r *result.ExplainedRule) string {
	text := "the proxy holds no units"
	if l := r.Lease; l.Units > 0 {
		text = fmt.Sprintf("the proxy holds %d for %s", l.Units, manage.Span(l.EndsMs))
	}
	switch {
	case r.Lease.Silent != "":
		return text + "; " + manage.SilentText(r.Lease.Silent)
	case len(r.Windows) > 0:
		return text + "; the limits are what the quota service said last"
	case r.Pending:
		return text + "; the quota service has not said yet how the key stands"
	}
	return text
}
