package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"text/template"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/accesslog"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/printable"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/replay"
)

//go:embed text.tmpl
var textText string

var texts = template.Must(template.New("texts").Funcs(functions).Parse(textText))

// Text writes a replay for a terminal.
func Text(w io.Writer, r *replay.Report) error { return writeText(w, "replay", r) }

// Policy writes the policy of a suggestion, with what is known in comments.
func Policy(w io.Writer, s *replay.Suggestion) error {
	var about bytes.Buffer
	if err := writeText(&about, "suggestion", s); err != nil {
		return err
	}
	for line := range strings.Lines(about.String()) {
		fmt.Fprint(w, strings.TrimRight("# "+line, " \n"), "\n")
	}
	_, err := io.WriteString(w, "\n"+s.Policy)
	return err
}

func writeText(w io.Writer, name string, data any) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if err := texts.ExecuteTemplate(t, name, data); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return t.Flush()
}

// readings are what logs were taken for: of rotated logs, which have one format, the first.
func readings(s *accesslog.Stats) (list []accesslog.Reading) {
	for _, r := range s.Readings {
		same := func(other accesslog.Reading) bool {
			return r.Format == other.Format && maps.Equal(r.Fields, other.Fields)
		}
		if !slices.ContainsFunc(list, same) {
			list = append(list, r)
		}
	}
	return list
}

// outcomes are those of one policy, or of both.
func outcomes(r *replay.Report) []*replay.Outcome {
	if r.Against == nil {
		return []*replay.Outcome{&r.Outcome}
	}
	return []*replay.Outcome{&r.Outcome, r.Against}
}

// aloneView is what only one of two policies denies.
type aloneView struct {
	Title    string
	Requests int64
	Rules    []aloneRule
}

type aloneRule struct {
	*replay.Rule
	By *replay.OnlyHere
}

func alone(r *replay.Report) []aloneView {
	if r.Against == nil {
		return nil
	}
	by := " by " + r.Against.Policy
	now, before := r.Against, &r.Outcome
	denied := func(rule *replay.Rule) *replay.OnlyHere { return &rule.DeniedOnlyHere }
	list := []aloneView{
		viewAlone("newly denied"+by, now.DeniedOnlyHere, now.Rules, denied),
		viewAlone("no longer denied"+by, before.DeniedOnlyHere, before.Rules, denied),
	}
	if now.Shadow+before.Shadow == 0 {
		return list
	}
	inShadow := func(rule *replay.Rule) *replay.OnlyHere { return &rule.ShadowOnlyHere }
	return append(list,
		viewAlone("newly denied in shadow"+by, now.ShadowOnlyHere, now.Rules, inShadow),
		viewAlone("no longer denied in shadow"+by, before.ShadowOnlyHere, before.Rules, inShadow))
}

func viewAlone(
	title string, requests int64, rules []replay.Rule, by func(*replay.Rule) *replay.OnlyHere,
) aloneView {
	view := aloneView{Title: title, Requests: requests}
	for i := range rules {
		view.Rules = append(view.Rules, aloneRule{&rules[i], by(&rules[i])})
	}
	return view
}

// count prints "1 line" or "12,345 lines".
func count(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return grouped(n) + " " + what
}

// keyCell shows a key in a table.
func keyCell(key []*string) string {
	return printable.Text(printable.Cut(replay.KeyText(key), maxCellBytes))
}

const maxCellBytes = 80
