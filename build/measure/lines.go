package main

import (
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

func linesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "lines", Short: "Count the lines of Go in the repository, without comments and blank ones", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			code, tests, err := countLines(os.DirFS("."))
			fmt.Fprintf(cmd.OutOrStdout(), "%d lines of code, %d of tests\n", code, tests)
			return err
		},
	}
}

// countLines counts the lines that have a token on them, of all modules.
func countLines(tree fs.FS) (code, tests int, err error) {
	err = fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == ".git" || name == "build/out"):
			return fs.SkipDir
		case filepath.Ext(name) != ".go":
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		n := goLines(text)
		if strings.HasSuffix(name, "_test.go") {
			tests += n
		} else {
			code += n
		}
		return err
	})
	return code, tests, err
}

func goLines(text []byte) int {
	file := token.NewFileSet().AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, 0) // skips comments
	lines := map[int]bool{}
	for {
		at, tok, literal := s.Scan()
		if tok == token.EOF {
			return len(lines)
		}
		if tok == token.SEMICOLON && literal == "\n" {
			continue // put there by the scanner
		}
		first := file.Line(at)
		for i := range strings.Count(literal, "\n") + 1 { // a raw string has several
			lines[first+i] = true
		}
	}
}
