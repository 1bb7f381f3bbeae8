package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/fleet"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/testfile"
)

// errTestsFailed is the error of tests that failed. The report has said which.
var errTestsFailed = errors.New("tests failed")

// testOptions are the flags of test.
type testOptions struct {
	run     string
	verbose bool
	junit   string
	wasm    string
	output  output
}

// AddFlags adds the flags.
func (o *testOptions) AddFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.run, "run", "", "run only the tests whose names match `REGEXP`")
	flags.BoolVarP(&o.verbose, "verbose", "v", false, "print the tests that pass, too")
	flags.StringVar(&o.junit, "junit", "", "also write what came of the tests into `FILE`, as XML that CI systems read")
	addWasmFlag(cmd, &o.wasm, "")
	o.output.AddFlags(cmd)
}

func newTestCommand() *cobra.Command {
	var o testOptions
	cmd := &cobra.Command{
		Use:   "test [FILE…]",
		Short: "Run the tests of policies",
		Long: `Run tests of policies on the compiled filter, without a proxy. A test says which requests
come when, and what is expected of them. The tests of policy.yaml are in policy.test.yaml
beside it; without a FILE all files named *.test.yaml in this folder and below it run.

Each test has proxies, counters and a clock of its own. Rules of scope cluster ask a quota
service in the same process.

It exits with 1 if a test fails. If a file is not valid, no test runs. With --output json it
prints one JSON object a line, for each test and for each file.`,
		Example: `  sluice test
  sluice test policy.test.yaml -v
  sluice test --run 'failed logins' --junit report.xml`,
		Args: cobra.ArbitraryArgs,
		RunE: o.test,
	}
	o.AddFlags(cmd)
	return cmd
}

func (o *testOptions) test(cmd *cobra.Command, names []string) error {
	options := testfile.Options{CacheDir: fleet.CacheDir()}
	if o.run != "" {
		expression, err := regexp.Compile(o.run)
		if err != nil {
			return usageError(fmt.Errorf("--run %q: %w", o.run, err), "give a regular expression of Go, such as login")
		}
		options.Run = expression
	}
	ctx := cmd.Context()
	if len(names) == 0 {
		found, err := testfile.Find(ctx, ".")
		if err != nil {
			return fmt.Errorf("find tests: %w", err)
		}
		if len(found) == 0 {
			return withHint(errors.New("no file here or below is named *"+testfile.Suffix),
				"name the files, or write one: the tests of policy.yaml are in policy"+testfile.Suffix)
		}
		names = found
	}
	files, err := readTests(names)
	if err != nil {
		return err
	}
	options.Wasm, err = readFilter(o.wasm)
	if err != nil {
		return err
	}
	var to testfile.Reporter = testfile.Text{To: cmd.OutOrStdout(), Verbose: o.verbose}
	if o.output == outputJSON {
		to = testfile.JSON{To: cmd.OutOrStdout()}
	}
	return o.report(files, func() ([]*testfile.Outcome, error) { return runTests(ctx, files, options, to) })
}

// readTests reads files. If one is not valid, the error has the problems of all.
func readTests(names []string) (files []*testfile.File, err error) {
	var problems policyfile.Errors
	for _, name := range names {
		file, err := testfile.Read(name)
		var found policyfile.Errors
		switch {
		case errors.As(err, &found):
			problems = append(problems, found...)
		case err != nil:
			return nil, err
		}
		files = append(files, file)
	}
	if problems != nil {
		return nil, problems
	}
	return files, nil
}

// runTests runs the tests of files, one after the other.
func runTests(
	ctx context.Context, files []*testfile.File, o testfile.Options, to testfile.Reporter,
) (outcomes []*testfile.Outcome, err error) {
	for _, file := range files {
		outcome, err := file.Run(ctx, o, to)
		if err != nil {
			return nil, err
		}
		outcomes = append(outcomes, outcome)
	}
	return outcomes, nil
}

// report runs the tests, writes the file for CI, and fails if a test did.
func (o *testOptions) report(files []*testfile.File, run func() ([]*testfile.Outcome, error)) error {
	reads := []string{o.wasm}
	for _, file := range files {
		reads = append(reads, file.Reads()...)
	}
	var outcomes []*testfile.Outcome
	junit := written{flag: "--junit", name: o.junit, mode: 0o644}
	err := junit.with(reads, func(w io.Writer) (err error) {
		outcomes, err = run()
		if err != nil || w == nil {
			return err
		}
		return testfile.WriteJUnit(w, outcomes)
	})
	if err != nil {
		return err
	}
	for _, outcome := range outcomes {
		if outcome.Failed() > 0 {
			return errTestsFailed
		}
	}
	return nil
}
