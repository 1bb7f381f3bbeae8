package browser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// tab is a tab of a real Chromium, whose complaints are kept.
type tab struct {
	t    *testing.T
	ctx  context.Context
	axe  string // the source of axe-core
	base string

	mu         sync.Mutex
	complaints []string
}

// program is a file that the environment names.
func program(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	require.NotEmpty(t, path, "%s names nothing: make e2e-console installs what this test takes", variable)
	return path
}

// open starts Chromium.
func open(t *testing.T, base string) *tab {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program(t, "SLUICE_CHROMIUM")),
		chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(time.Minute))
	allocated, end := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(end)
	ctx, cancel := chromedp.NewContext(allocated)
	t.Cleanup(cancel)
	source, err := os.ReadFile(program(t, "SLUICE_AXE"))
	require.NoError(t, err)
	b := &tab{t: t, ctx: ctx, axe: string(source), base: base}
	at, err := url.Parse(base)
	require.NoError(t, err)
	require.NoError(t, chromedp.Listen(ctx, func(event any) { b.note(event, at.Host) }))
	b.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, log.Enable, cdp.Empty{})
		_, err2 := cdp.Call(ctx, t, runtime.Enable, cdp.Empty{})
		_, err3 := cdp.Call(ctx, t, network.Enable, network.EnableParams{})
		return errors.Join(err, err2, err3)
	}))
	return b
}

// note keeps what no page may do.
func (b *tab) note(event any, host string) {
	var complaint string
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		complaint = "exception: " + e.ExceptionDetails.Text
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			complaint = "console: a page complains"
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			complaint = fmt.Sprintf("log: %s %s", e.Entry.Text, e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		if to, err := url.Parse(e.Request.URL); err != nil || to.Host != host && to.Scheme != "data" {
			complaint = "request to another host: " + e.Request.URL
		}
	}
	if complaint != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.complaints = append(b.complaints, complaint)
	}
}

func (b *tab) requireQuiet() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b.t, b.complaints)
}

// do runs actions, within a minute.
func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	run(b, chromedp.Steps(steps...))
}

// run runs an action, within a minute.
func run[T any](b *tab, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	got, err := chromedp.Run(ctx, action)
	if err != nil {
		require.NoError(b.t, err, b.text("body"))
	}
	return got
}

func (b *tab) visit(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.base+path), chromedp.WaitVisible("h1"))
}

// text is what an element says, "" if there is none.
func (b *tab) text(selector string) string {
	quoted, _ := json.Marshal(selector)
	text, _ := chromedp.Run(b.ctx,
		chromedp.Evaluate[string](fmt.Sprintf("(document.querySelector(%s)||{innerText:''}).innerText", quoted)))
	return text
}

// await waits until an element says something.
func (b *tab) await(selector, want string) {
	b.t.Helper()
	require.Eventually(b.t, func() bool { return strings.Contains(b.text(selector), want) }, time.Minute,
		100*time.Millisecond,
		"%s should say %s\n%s", selector, want, b.text("body"))
}

// seesValues puts the pointer into a chart, which then says the values there.
func (b *tab) seesValues(chart, pattern string) {
	b.t.Helper()
	b.do(chromedp.ScrollIntoView(chart))
	quoted, _ := json.Marshal(chart)
	at := run(b, chromedp.Evaluate[[]float64](fmt.Sprintf(
		`(r => [r.left + r.width / 2, r.top + 90])(document.querySelector(%s).getBoundingClientRect())`, quoted)))
	shown := ""
	require.Eventually(b.t, func() bool {
		b.do(chromedp.MouseEvent(chromedp.MouseMoved, at[0], at[1])) // the page may have been drawn anew
		shown = run(b, chromedp.Evaluate[string](fmt.Sprintf(`[...document.querySelectorAll(%s + " .at text")].filter(
			t => getComputedStyle(t).visibility == "visible").map(t => t.textContent).join("; ")`, quoted)))
		matched, err := regexp.MatchString(pattern, shown)
		return err == nil && matched
	}, time.Minute, 100*time.Millisecond, "the pointer shows one moment's values")
}

// looks are the themes and widths in which each page is seen.
var looks = []struct {
	name, theme   string
	width, height int64
}{
	{"light", "light", 1100, 840},
	{"dark", "dark", 1100, 840},
	{"phone", "light", 390, 844},
}

// see looks at a page in every way: axe must find no serious fault, nothing may stand out
// to the right, and those looks that the docs show become pictures.
func (b *tab) see(name string, shown ...string) {
	b.t.Helper()
	for _, look := range looks {
		b.look(look.theme, look.width, look.height)
		b.requireAccessible(name + " " + look.name)
		surplus := run(b, chromedp.Evaluate[int](
			`document.documentElement.scrollWidth - document.documentElement.clientWidth`))
		require.LessOrEqual(b.t, surplus, 0, "%s is wider than the screen, %s", name, look.name)
		b.shoot(name+"-"+look.name, shown)
	}
	b.look("light", 1100, 840)
	b.requireQuiet()
}

func (b *tab) look(theme string, width, height int64) {
	b.t.Helper()
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme",
		Value: theme}}}
	b.do(chromedp.EmulateViewport(width, height), chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, media)
		return err
	}))
}

func (b *tab) requireAccessible(what string) {
	b.t.Helper()
	type violation struct {
		ID, Impact, Help string
		Nodes            []struct{ HTML string }
	}
	run(b, chromedp.Evaluate[int](b.axe+";0"))
	found := run(b, chromedp.Evaluate[[]violation](`axe.run().then(r => r.violations.map(
		v => ({ID: v.id, Impact: v.impact, Help: v.help, Nodes: v.nodes.map(n => ({HTML: n.html}))})))`,
		func(p *runtime.EvaluateParams) { awaited := true; p.AwaitPromise = &awaited }))
	for _, v := range found {
		require.NotContains(b.t, []string{"serious", "critical"}, v.Impact, "%s: %s: %s %v", what, v.ID, v.Help, v.Nodes)
		b.t.Logf("%s: axe: %s (%s): %s %v", what, v.ID, v.Impact, v.Help, v.Nodes)
	}
}

// largest is what a picture in the docs may take.
const largest = 150_000

// shoot writes a picture into the folder that SLUICE_SHOTS names.
func (b *tab) shoot(name string, shown []string) {
	b.t.Helper()
	dir := os.Getenv("SLUICE_SHOTS")
	if dir == "" {
		return
	}
	png := run(b, chromedp.CaptureScreenshot())
	require.Less(b.t, len(png), largest, name)
	for _, one := range shown {
		if strings.HasSuffix(name, "-"+one) {
			require.NoError(b.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644))
		}
	}
	if all := os.Getenv("SLUICE_ALL_SHOTS"); all != "" {
		require.NoError(b.t, os.WriteFile(filepath.Join(all, name+".png"), png, 0o644))
	}
}
