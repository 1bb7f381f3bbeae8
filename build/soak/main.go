// The soak command runs the long forms of the tests one after the other and
// says at the end what each of them did.
//
// Its invariant: every part runs, whatever became of the one before, and the
// command fails if one did.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"
)

func main() {
	minutes := flag.Int("minutes", 30, "about how long it may take, on two idle processors")
	seed := flag.Uint64("seed", 1, "first seed of the random parts")
	only := flag.String("only", ".", "regular `expression` for the names of the parts to run")
	flag.Parse()
	which, err := regexp.Compile(*only)
	if err != nil || *minutes < 1 || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: soak [-minutes N] [-seed N] [-only REGEXP]; N is 1 or more")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	var list []part
	for _, p := range parts(*minutes, *seed) {
		if which.MatchString(p.name) {
			list = append(list, p)
		}
	}
	fmt.Printf("%d parts, %d minutes, seed %d\n", len(list), *minutes, *seed)
	err = run(ctx, os.Stdout, list)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// outcome is what became of a part.
type outcome struct {
	part
	took time.Duration
	said []string // what its tests logged, or the last thing a fuzzer did
	err  error
}

func run(ctx context.Context, out io.Writer, list []part) error {
	if len(list) == 0 {
		return errors.New("no part has such a name")
	}
	var done []outcome
	for _, p := range list {
		fmt.Fprintf(out, "=== %s: go test %s\n", p.name, strings.Join(p.args, " "))
		o := runPart(ctx, out, p)
		done = append(done, o)
		if ctx.Err() != nil {
			break
		}
	}
	return summarize(out, done, len(list))
}

func runPart(ctx context.Context, out io.Writer, p part) outcome {
	var text bytes.Buffer
	cmd := command(ctx, "go", append([]string{"test", "-count=1", "-timeout=2h", "-v", "-tags=long"}, p.args...)...)
	cmd.Stdout = io.MultiWriter(out, &text)
	cmd.Stderr = cmd.Stdout
	began := time.Now()
	err := cmd.Run()
	return outcome{p, time.Since(began), said(text.String()), err}
}

// command is a command that ends with ctx, and with it all that it has started:
// go test leaves its tests behind where it is killed, and they their proxies.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

var (
	logged = regexp.MustCompile(`(?m)^ +\w+_test\.go:\d+: (.*)$`)
	fuzzes = regexp.MustCompile(`(?m)^fuzz: elapsed: .*$`)
)

func said(text string) (lines []string) {
	for _, m := range logged.FindAllStringSubmatch(text, -1) {
		lines = append(lines, m[1])
	}
	if all := fuzzes.FindAllString(text, -1); len(all) > 0 {
		lines = append(lines, all[len(all)-1])
	}
	return lines
}

func summarize(out io.Writer, done []outcome, planned int) error {
	fmt.Fprintln(out, "\n=== summary")
	total, failed := time.Duration(0), 0
	for _, o := range done {
		verdict := "ok    "
		if o.err != nil {
			verdict = "FAILED"
			failed++
		}
		fmt.Fprintf(out, "%s %-14s %s\n", verdict, o.name, o.took.Round(time.Second))
		for _, line := range o.said {
			fmt.Fprintf(out, "       %s\n", line)
		}
		total += o.took
	}
	fmt.Fprintf(out, "%d of %d parts in %s\n", len(done), planned, total.Round(time.Second))
	switch {
	case failed > 0:
		return fmt.Errorf("%d of %d parts failed", failed, planned)
	case len(done) < planned:
		return fmt.Errorf("interrupted after %d of %d parts", len(done), planned)
	}
	return nil
}
