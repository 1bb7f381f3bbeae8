// Package testfile is a policy's tests in a file beside it, in YAML: it reads them, runs them on
// the compiled filter, and writes what came of them for people, for programs and as JUnit's XML.
//
// Its invariant: a file is read and checked whole before a test of it runs, so a test that runs
// names no rule, window or running request that there is not. Tests know nothing of each other:
// each has proxies, counters and a clock of its own. The package must never import the command line.
//
// A file such as this one
//
//	version: 1
//	policy: policy.yaml
//	request: {headers: {x-user-id: alice}}
//	tests:
//	  - name: two a minute
//	    request: {path: /v1/orders}
//	    steps:
//	      - {times: 2, expect: {allowed: true}, last: {remaining: 0}}
//	      - {expect: {denied_by: per-user, status: 429}}
//	      - {counter: {rule: per-user, key: [alice]}, expect: {used: 2}}
//
// becomes a File with one Test and its three steps: two of the kind sendStep, each with a copy of the file's and
// the test's request, and one countStep. Each field of expect and last becomes a check. If allowed is not true,
// the check fails, and the test's Result gets the Failure "step 1, request 1 of 2: allowed: expected true, seen
// false" with the line.
//
// Each object of the format has a table, a row a field: the file, tests and counters (fields.go), steps (step.go),
// requests and answers (requestfields.go), expect (expectfields.go), rules and windows in it (expectrules.go).
// reader.go reads a file by the tables; schema and reference come from them too. run.go runs the tests on package
// policytest, and report.go writes what came of them.
//
// To add a field: a row, whose read writes it to what the object is read into. A row of a step or of expect also
// says which kinds of steps take it. run.go does what is new, or a check sees it. Tests hold what else names fields.
package testfile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/input"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/policytest"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Version of the format.
const Version = 1

// Suffix is how the name of a test file ends.
const Suffix = ".test.yaml"

const (
	maxTests   = 10_000
	maxSteps   = 10_000
	maxTimes   = 1_000_000
	maxProxies = 64
	// maxBody bounds the body of a request that is given by its length alone.
	maxBody = 1 << 40
)

// File is a file of tests that can be run.
type File struct {
	Name  string // as the caller named it
	Tests []Test

	policyName string // of its file, from the test file's folder
	policyText []byte
	policy     *policy.Policy
	start      time.Time
	proxies    int
	request    policytest.Request
}

// Test is one test.
type Test struct {
	Name  string
	Line  int
	steps []step

	request policytest.Request
}

// Reads are the names of the files that were read: this one and its policy.
func (f *File) Reads() []string { return []string{f.Name, f.policyName} }

// Read reads a file and the policy that it names, and checks both. An error is a policyfile.Errors
// with all problems, if a file is not valid.
func Read(name string) (*File, error) {
	text, err := input.File(name, policy.MaxBytes)
	if err != nil {
		return nil, fmt.Errorf("read tests: %w", err)
	}
	open := func(policyName string) ([]byte, error) {
		root, err := os.OpenRoot(filepath.Dir(name))
		if err != nil {
			return nil, err
		}
		defer root.Close()
		return input.FileIn(root, policyName, policy.MaxBytes)
	}
	return parse(name, text, open)
}

// parse reads the text of a file. It opens the policy from the file's folder.
func parse(name string, text []byte, open func(name string) ([]byte, error)) (*File, error) {
	doc, err := policyfile.Parse(name, text)
	if err != nil {
		return nil, err
	}
	f := &File{Name: name, start: policytest.DefaultStart, proxies: 1}
	r := &reader{doc: doc, file: f, open: open}
	r.format, _ = Schema()
	if r.isKnownVersion() {
		readObject(r, doc, fileObject, f)
	}
	if problems := r.found(); len(problems) > 0 {
		return nil, problems
	}
	return f, nil
}

// readPolicy reads the policy that a file names.
func readPolicy(r *reader, n *policy.Node, _ policy.Shape, f *File) {
	name, ok := r.text(n)
	if !ok {
		return
	}
	if !filepath.IsLocal(name) {
		r.fail(n, "must be the name of a file beside this one, or in a folder below it")
		return
	}
	text, err := r.open(name)
	if err != nil {
		r.fail(n, "cannot read the policy: "+plain(err))
		return
	}
	path := filepath.Join(filepath.Dir(f.Name), name)
	p, _, _, err := policyfile.Read(path, text)
	var problems policyfile.Errors
	switch {
	case errors.As(err, &problems):
		r.other = append(r.other, problems...)
	case err != nil:
		r.fail(n, err.Error())
	}
	f.policyName, f.policyText = path, text
	f.policy = p
}

// plain is an error without the name of the system call.
func plain(err error) string {
	var of *os.PathError
	if errors.As(err, &of) {
		return of.Path + ": " + of.Err.Error()
	}
	return err.Error()
}

// Find lists the test files in a folder and below it, by name. It leaves out folders whose names
// begin with a point.
func Find(ctx context.Context, folder string) (names []string, err error) {
	err = filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case entry.IsDir() && path != folder && entry.Name()[0] == '.':
			return filepath.SkipDir
		case !entry.IsDir() && len(entry.Name()) > len(Suffix) && strings.HasSuffix(entry.Name(), Suffix):
			names = append(names, path)
		}
		return nil
	})
	return names, err
}
