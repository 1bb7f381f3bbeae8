package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/certtest"
	"github.com/sluice-ratelimit/sluice/build/ports"
	"github.com/sluice-ratelimit/sluice/build/proctest"
)

// asSluice makes the test binary behave as the command itself.
const asSluice = "SLUICE_TEST_AS_COMMAND"

// patience is how long a test waits for what must come.
const patience = 2 * time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(asSluice) != "" {
		code := run()
		proctest.SaveStatus()
		os.Exit(code)
	}
	testscript.Main(m, map[string]func(){"sluice": func() { os.Exit(run()) }, "ratelimit": func() { os.Exit(run()) }})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Setup: func(env *testscript.Env) error {
			slowdown, err := proctest.Slowdown()
			// For proxies that answer, beside one that does not.
			wait := time.Duration(300 * slowdown * float64(time.Millisecond))
			env.Setenv("WAIT", wait.Round(100*time.Millisecond).String())
			return errors.Join(err, keepCompiled(filepath.Join(env.WorkDir, "cache")))
		},
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"freeport": freeport,
			"healthy":  healthy,
			"lease":    lease,
			"limit":    limitCall,
			"proxy":    proxyCommand,
			"certs":    certs,
			"spoil":    spoil,
			"stranger": stranger,
			"filter":   filter,
			"silent":   silent,
		},
	})
}

// keepCompiled makes the commands of a script find the filters that tests have compiled,
// in what the script gives them as XDG_CACHE_HOME.
func keepCompiled(cache string) error {
	return errors.Join(
		os.MkdirAll(buildtest.CacheDir(), 0o700), os.MkdirAll(filepath.Join(cache, "sluice"), 0o700),
		os.Symlink(buildtest.CacheDir(), filepath.Join(cache, "sluice", "compiled")),
	)
}

// freeport NAME… sets each variable to an address nobody listens on.
func freeport(ts *testscript.TestScript, _ bool, names []string) {
	free, err := ports.Free(len(names))
	ts.Check(err)
	for i, name := range names {
		ts.Setenv(name, fmt.Sprint("127.0.0.1:", free[i]))
	}
}

// stranger NAME starts a server that is no sluice and sets the variable to its
// URL.
func stranger(ts *testscript.TestScript, _ bool, args []string) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			http.Error(w, "who are you?\x1b[31m", http.StatusTeapot)
			return
		}
		_, _ = w.Write([]byte("hello\n"))
	}))
	ts.Defer(s.Close)
	ts.Setenv(args[0], s.URL)
}

// silent NAME sets the variable to an address that accepts and never answers.
func silent(ts *testscript.TestScript, _ bool, args []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { _ = l.Close() })
	ts.Setenv(args[0], l.Addr().String())
}

// filter FILE compiles the filter.
func filter(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(buildtest.Compile(buildtest.Root(), ts.MkAbs(args[0])))
}

// healthy ADDRESS… waits until serve listens there.
func healthy(ts *testscript.TestScript, _ bool, addresses []string) {
	for _, address := range addresses {
		deadline := time.Now().Add(patience)
		for !answers(address) {
			if time.Now().After(deadline) {
				ts.Fatalf("nothing listens on %s", address)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// answers says whether something listens at the address.
func answers(address string) bool {
	c, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// spoil FILE TEXT changes a byte wherever the text is in the file.
func spoil(ts *testscript.TestScript, _ bool, args []string) {
	content := []byte(ts.ReadFile(args[0]))
	if !bytes.Contains(content, []byte(args[1])) {
		ts.Fatalf("%s does not have %q", args[0], args[1])
	}
	changed := bytes.ReplaceAll(content, []byte(args[1]), []byte("?"+args[1][1:]))
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), changed, 0o600))
}

// certs writes ca.pem, the .pem and .key of server, client, edge and each given name, which that
// authority has issued, and a self-signed stranger.pem and .key.
func certs(ts *testscript.TestScript, _ bool, names []string) {
	write := func(name string, c *tls.Certificate) {
		cert, key := certtest.PEM(c)
		ts.Check(os.WriteFile(ts.MkAbs(name+".pem"), []byte(cert), 0o600))
		ts.Check(os.WriteFile(ts.MkAbs(name+".key"), []byte(key), 0o600))
	}
	ca := certtest.Issue(nil, nil)
	write("ca", ca)
	for _, name := range []string{"server", "client", "edge"} {
		write(name, certtest.Issue(ca, []string{name + ".test"}))
	}
	for _, name := range names {
		write(name, certtest.Issue(ca, []string{name}))
	}
	write("stranger", certtest.Issue(nil, []string{"stranger.test"}))
}
