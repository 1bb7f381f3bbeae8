package console

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-analyze/charts"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
)

// maxFailed bounds the proxies that are named because they have not answered.
const maxFailed = 20

// rulesView is the rules and what they decide.
type rulesView struct {
	Rules   []Rule
	Failed  []policyfile.Problem // proxies that have not answered, the first of them
	Silent  int                  // all of these
	More    int
	Sample  int
	Missing bool   // serve cannot ask proxies
	Trouble string // why there is no new sample
}

func (c *console) rules(w http.ResponseWriter, r *http.Request, v *visit) error {
	b := rulesView{}
	switch err := c.sample(r); {
	case isCode(err, http.StatusNotImplemented):
		b.Missing = true
	case isCode(err, http.StatusServiceUnavailable):
		b.Trouble = err.Error()
	case err != nil:
		return err
	}
	b.Rules, b.Failed, b.More, b.Sample = c.samples.list()
	b.Silent = len(b.Failed)
	b.Failed = b.Failed[:min(b.Silent, maxFailed)]
	return c.render(w, http.StatusOK, "rules", view{"Rules", "rules", v, &b})
}

// sample asks the proxies what they have counted, unless that has just been done.
func (c *console) sample(r *http.Request) error {
	c.samples.asked.Lock()
	defer c.samples.asked.Unlock()
	if !c.samples.due() {
		return nil
	}
	var counters api.Counters
	form := url.Values{"timeout": {"2s"}}
	if err := c.call(r, http.MethodPost, "/v1/counters/stats", form, &counters); err != nil {
		return err
	}
	c.samples.add(&counters)
	var top api.Counters // which the page can do without
	if err := c.call(r, http.MethodPost, "/v1/counters/top", form, &top); err == nil {
		c.samples.addKeys(top.Denials)
	}
	return nil
}

// plot draws the rates of a rule.
func (c *console) plot(w http.ResponseWriter, r *http.Request, v *visit) error {
	query := r.URL.Query()
	rule, times, ok := c.samples.rule(query.Get("rule"))
	if !ok || len(times) == 0 {
		return c.unknown(w, r, v)
	}
	labels := make([]string, len(times))
	for _, i := range []int{0, len(times) / 2, len(times) - 1} { // more would overlap
		labels[i] = times[i].UTC().Format("15:04:05")
	}
	svg, err := draw(&rule, labels, query.Get("theme") == "dark")
	if err != nil {
		return fmt.Errorf("draw rule: %w", err)
	}
	// The library writes styles as attributes. A picture in its own document may.
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox")
	w.Header().Set("Content-Type", "image/svg+xml")
	_, _ = w.Write(svg) // the visitor has gone if this fails
	return nil
}

// Colors that are told apart in both themes, also by who sees no red and green.
var (
	lightColors = []charts.Color{charts.ColorFromHex("#0868ac"), charts.ColorFromHex("#c2410c"), charts.ColorFromHex("#6b7280")}
	darkColors  = []charts.Color{charts.ColorFromHex("#60b3f0"), charts.ColorFromHex("#fb923c"), charts.ColorFromHex("#a8b0bd")}
)

func draw(rule *Rule, labels []string, dark bool) ([]byte, error) {
	values := make([][]float64, 3)
	for _, rate := range rule.Rates {
		for i, v := range []float64{rate.Allowed, rate.Denied, rate.Shadow} {
			values[i] = append(values[i], math.Round(v*100)/100)
		}
	}
	theme, colors, ground := charts.GetTheme(charts.ThemeLight), lightColors, charts.ColorFromHex("#ffffff")
	if dark {
		theme, colors, ground = charts.GetTheme(charts.ThemeDark), darkColors, charts.ColorFromHex("#161b22")
	}
	o := charts.NewLineChartOptionWithData(values)
	o.Theme = theme.WithSeriesColors(colors).WithBackgroundColor(ground)
	o.XAxis.Labels = labels
	o.XAxis.LabelCount = len(labels)
	o.Legend.SeriesNames = []string{"allowed", "denied", "shadow"}
	o.Symbol = charts.Symbol{Shape: charts.SymbolNone}
	o.LineStrokeWidth = 2
	o.YAxis[0].Min = charts.Ptr(0.0)
	o.Padding = charts.NewBox(8, 8, 24, 8)
	painter := charts.NewPainter(charts.PainterOptions{OutputFormat: charts.ChartOutputSVG, Width: 560, Height: 200})
	if err := painter.LineChart(o); err != nil {
		return nil, err
	}
	return painter.Bytes()
}

// Text is a rate as people read it.
func (c Counts) text(v float64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0")
}

// AllowedText is how many requests were allowed.
func (c Counts) AllowedText() string { return c.text(c.Allowed) }

// DeniedText is how many requests were denied.
func (c Counts) DeniedText() string { return c.text(c.Denied) }

// ShadowText is how many requests would have been denied.
func (c Counts) ShadowText() string { return c.text(c.Shadow) }
