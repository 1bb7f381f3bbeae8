package front

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/proctest"
)

// sourceRig is a service whose configuration comes from outside.
type sourceRig struct {
	t   testing.TB
	dir string
	log proctest.Log
	*Service
}

func newSourceRig(t testing.TB) *sourceRig {
	r := &sourceRig{t: t, dir: t.TempDir()}
	r.Service = New(Options{Log: slog.New(slog.NewTextHandler(&r.log, nil))})
	return r
}

// limitOf is how many requests a domain may have, 0 = it has no configuration.
func (r *sourceRig) limitOf(domain string) uint32 {
	c := r.config.Load()
	if c == nil {
		return 0
	}
	m, ok := c.Match(domain, entries("user", "a"))
	if !ok {
		return 0
	}
	return m.Limit.Requests
}

func (r *sourceRig) loaded() int { return int(testutil.ToFloat64(r.metrics.loaded)) }

func (r *sourceRig) rejected() int { return int(testutil.ToFloat64(r.metrics.notLoaded)) }

func (r *sourceRig) path(name string) string { return filepath.Join(r.dir, name) }

// write writes a file, and the directories above it.
func (r *sourceRig) write(name, text string) {
	r.t.Helper()
	require.NoError(r.t, os.MkdirAll(filepath.Dir(r.path(name)), 0o700))
	require.NoError(r.t, os.WriteFile(r.path(name), []byte(text), 0o600))
}

func (r *sourceRig) link(to, name string) {
	r.t.Helper()
	require.NoError(r.t, os.Symlink(to, r.path(name)))
}

func limitedTo(domain string, n int) string {
	return fmt.Sprintf("domain: %s\ndescriptors:\n- {key: user, rate_limit: {unit: hour, requests_per_unit: %d}}\n",
		domain, n)
}

var listed = []struct {
	name    string
	options FileOptions
	want    string
}{
	{"all", FileOptions{},
		"..data/a.yaml .d/e.yaml .f.yaml a.yaml config/b.yaml config/deep/c config.yaml link.yaml"},
	{"without those whose names begin with a dot", FileOptions{IgnoreDotFiles: true},
		"a.yaml config/b.yaml config/deep/c config.yaml link.yaml"},
	{"with a prefix", FileOptions{Prefix: "config."}, "config/b.yaml config/deep/c config.yaml"},
}

func TestFilesOfADirectory(t *testing.T) {
	r := newSourceRig(t)
	names := []string{"a.yaml", "config.yaml", "config/b.yaml", "config/deep/c", ".d/e.yaml", ".f.yaml", "..data/a.yaml"}
	for _, name := range names {
		r.write(name, "")
	}
	r.link("config/b.yaml", "link.yaml")
	r.link("config", "folder")
	current := filepath.Join(t.TempDir(), ".current")
	require.NoError(t, os.Symlink(r.dir, current))
	for _, l := range listed {
		for _, path := range []string{r.dir, r.dir + "//", current, current + "/."} {
			got, err := l.options.list(path)
			require.NoError(t, err)
			for i, name := range got {
				got[i], err = filepath.Rel(path, name)
				require.NoError(t, err)
			}
			require.Equal(t, l.want, strings.Join(got, " "), "%s of %s", l.name, path)
		}
	}
	dot, err := (&FileOptions{IgnoreDotFiles: true}).list(r.path(".f.yaml"))
	require.NoError(t, err)
	require.Equal(t, []string{r.path(".f.yaml")}, dot, "a file that is named itself counts")
}

func TestChangedFilesAreInForceWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSourceRig(t)
		r.write("a.yaml", limitedTo("shop", 1))
		require.NoError(t, r.WatchFiles(t.Context(), FileOptions{Paths: []string{r.dir}, IgnoreDotFiles: true}))
		require.Equal(t, uint32(1), r.limitOf("shop"))

		inForce := func(want uint32, domain string) {
			t.Helper()
			time.Sleep(time.Second)
			require.Equal(t, want, r.limitOf(domain), "%s", &r.log)
		}
		r.write("a.yaml", limitedTo("shop", 2))
		inForce(2, "shop")
		r.write(".new", limitedTo("shop", 3))
		require.NoError(t, os.Rename(r.path(".new"), r.path("a.yaml")))
		inForce(3, "shop")
		r.write("more/b", limitedTo("bank", 4))
		inForce(4, "bank")
		require.NoError(t, os.Rename(r.path("more/b"), r.path("b")))
		inForce(4, "bank")
		require.NoError(t, os.Remove(r.path("a.yaml")))
		inForce(0, "shop")
		require.NoError(t, os.Remove(r.path("b")))
		inForce(0, "bank")
		require.Contains(t, r.log.String(), "has no domain")
		require.Zero(t, r.rejected())

		loaded := r.loaded()
		time.Sleep(time.Hour)
		require.Equal(t, loaded, r.loaded(), "files that stay as they are")
	})
}

// The kubelet writes a ConfigMap into a new directory, and then exchanges a link.
func TestConfigMapIsExchangedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSourceRig(t)
		r.write("..one/a.yaml", limitedTo("shop", 1))
		r.write("..one/b.yaml", limitedTo("bank", 1))
		r.link("..one", "..data")
		r.link("..data/a.yaml", "a.yaml")
		r.link("..data/b.yaml", "b.yaml")
		require.NoError(t, r.WatchFiles(t.Context(), FileOptions{Paths: []string{r.dir}, IgnoreDotFiles: true}))

		// The domains change places.
		r.write("..two/a.yaml", limitedTo("bank", 2))
		r.write("..two/b.yaml", limitedTo("shop", 2))
		r.link("..two", "..data_tmp")
		require.NoError(t, os.Rename(r.path("..data_tmp"), r.path("..data")))
		require.NoError(t, os.RemoveAll(r.path("..one")))
		time.Sleep(time.Second)
		require.Equal(t, []uint32{2, 2}, []uint32{r.limitOf("shop"), r.limitOf("bank")})
		require.Zero(t, r.rejected(), "%s", &r.log)

		// The directory itself behind a link, as with RUNTIME_WATCH_ROOT.
		require.NoError(t, r.WatchFiles(t.Context(), FileOptions{Paths: []string{r.path("..data")}}))
		r.write("..three/a.yaml", limitedTo("shop", 3))
		r.link("..three", "..data_tmp")
		require.NoError(t, os.Rename(r.path("..data_tmp"), r.path("..data")))
		time.Sleep(time.Second)
		require.Equal(t, uint32(3), r.limitOf("shop"))
	})
}

func TestHalfWrittenFileIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSourceRig(t)
		r.write("a.yaml", limitedTo("shop", 1))
		require.NoError(t, r.WatchFiles(t.Context(), FileOptions{Paths: []string{r.path("a.yaml")}}))
		text := limitedTo("shop", 2)
		for end := range len(text) {
			time.Sleep(settleFor - time.Millisecond)
			r.write("a.yaml", text[:end])
		}
		require.Equal(t, uint32(1), r.limitOf("shop"))
		r.write("a.yaml", text)
		time.Sleep(time.Second)
		require.Equal(t, uint32(2), r.limitOf("shop"))
		require.Zero(t, r.rejected(), "%s", &r.log)
	})
}

// badFiles are what becomes of a.yaml, and what the log says of it.
var badFiles = []struct {
	name   string
	change func(r *sourceRig)
	want   string
}{
	{"not YAML", func(r *sourceRig) { r.write("a.yaml", "domain: shop\ndescriptors: [\n") }, "a.yaml:2"},
	{"unknown field", func(r *sourceRig) { r.write("a.yaml", "domain: shop\ndescriptor: []\n") },
		`a.yaml:2:1: descriptor: unknown field: did you mean "descriptors"?`},
	{"deep", func(r *sourceRig) { r.write("a.yaml", "domain: "+strings.Repeat("[", 5000)) }, "a.yaml:"},
	{"deep and whole", func(r *sourceRig) {
		r.write("a.yaml", "descriptors: "+strings.Repeat("[", 5000)+strings.Repeat("]", 5000))
	}, "deep"},
	{"empty", func(r *sourceRig) { r.write("a.yaml", "") }, "a.yaml: the text is empty"},
	{"many problems", func(r *sourceRig) {
		r.write("a.yaml", "domain: shop\ndescriptors:\n"+strings.Repeat("- {value: a}\n", 50))
	}, "descriptors[4]: a descriptor needs a key"},
	{"a domain twice", func(r *sourceRig) { r.write("b.yaml", limitedTo("shop", 2)) }, "b.yaml: domain: the domain shop"},
	{"too large", func(r *sourceRig) { r.write("a.yaml", strings.Repeat("#", maxFileBytes+1)) }, "the most is 1048576"},
	{"a directory gone", func(r *sourceRig) { require.NoError(r.t, os.Rename(r.dir, r.dir+".old")) }, "no such file"},
	{"a link to nothing", func(r *sourceRig) { r.link("nothing", "b.yaml") }, "b.yaml: no such file"},
	{"a pipe", func(r *sourceRig) { require.NoError(r.t, syscall.Mkfifo(r.path("b.yaml"), 0o600)) },
		"b.yaml is a pipe, not a regular file"},
}

func TestBadFilesChangeNothing(t *testing.T) {
	for _, bad := range badFiles {
		t.Run(bad.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newSourceRig(t)
				r.dir = r.path("config")
				r.write("a.yaml", limitedTo("shop", 1))
				o := FileOptions{Paths: []string{r.dir}}
				require.NoError(t, r.WatchFiles(t.Context(), o))
				bad.change(r)
				time.Sleep(time.Minute)
				require.Equal(t, uint32(1), r.limitOf("shop"))
				require.Equal(t, 1, r.rejected())
				lines := strings.Split(strings.TrimSpace(r.log.String()), "\n")
				require.Len(t, lines, 2)
				require.Contains(t, lines[1], "level=ERROR")
				require.Contains(t, lines[1], strings.Trim(strconv.Quote(bad.want), `"`))
				require.NotContains(t, lines[1], "descriptors[5]", "not all problems")
				require.ErrorContains(t, newSourceRig(t).WatchFiles(t.Context(), o), bad.want)

				require.NoError(t, os.RemoveAll(r.dir))
				r.write("a.yaml", limitedTo("shop", 1))
				time.Sleep(time.Second)
				require.Equal(t, 1, strings.Count(r.log.String(), "level=ERROR"))
				require.Equal(t, 2, strings.Count(r.log.String(), "configuration in force"), "good again")
			})
		})
	}
}

func TestFilesAreBounded(t *testing.T) {
	r := newSourceRig(t)
	r.write("0", strings.Repeat("#", maxFileBytes))
	for i := range maxTotalBytes / maxFileBytes {
		require.NoError(t, os.Link(r.path("0"), r.path(fmt.Sprint(i+1))))
	}
	err := r.WatchFiles(t.Context(), FileOptions{Paths: []string{r.dir}})
	require.ErrorContains(t, err, "more than 16777216 bytes")
	for i := range maxEntries {
		require.NoError(t, os.Mkdir(r.path(fmt.Sprint("d", i)), 0o700))
	}
	err = r.WatchFiles(t.Context(), FileOptions{Paths: []string{r.dir}})
	require.ErrorContains(t, err, "more than 2000 files and directories")
}

func TestStartWithoutAGoodConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSourceRig(t)
		require.NoError(t, r.WatchFiles(t.Context(), FileOptions{Paths: []string{r.path("a.yaml")}, StartAnyway: true}))
		require.Equal(t, -1, r.Domains())
		require.Contains(t, r.log.String(), "level=ERROR")
		time.Sleep(time.Hour)
		require.Equal(t, 1, strings.Count(r.log.String(), "\n"))
		r.write("a.yaml", limitedTo("shop", 1))
		time.Sleep(time.Second)
		require.Equal(t, uint32(1), r.limitOf("shop"))
	})
}

func TestFilesOfOneDomainAreMerged(t *testing.T) {
	r := newSourceRig(t)
	r.write("a", limitedTo("shop", 1))
	r.write("b", "domain: shop\ndescriptors: [{key: tenant}]\n")
	require.Error(t, r.WatchFiles(t.Context(), FileOptions{Paths: []string{r.dir}}))
	require.NoError(t, r.WatchFiles(t.Context(), FileOptions{Paths: []string{r.dir}, Merge: true}))
	require.Equal(t, 1, r.Domains())
}
