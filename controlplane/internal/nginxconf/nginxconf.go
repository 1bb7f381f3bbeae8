// Package nginxconf reads configurations of nginx: directives with their arguments and blocks.
//
// Its invariant: each directive of the text is in the result, or the text is refused with file and
// line. It splits words as ngx_conf_read_token of nginx does (src/core/ngx_conf_file.c), knows no
// directive but include, and opens no file itself. It must import nothing of this module.
//
// There are two exceptions. The ) of an if that stands behind a quotation mark is left out, where nginx
// makes a word of it. And a block of Lua ends where its braces do, also if some of them are in texts or
// comments of Lua.
package nginxconf

import (
	"fmt"
	"slices"
	"strings"
)

// Directive is one directive, with the directives in its block.
type Directive struct {
	Name  string
	Args  []string
	Block []*Directive
	File  string
	Line  int
}

// Arg is an argument by its number; empty if there are fewer.
func (d *Directive) Arg(i int) string {
	if i < len(d.Args) {
		return d.Args[i]
	}
	return ""
}

// Named are the directives with a name, in their order.
func Named(list []*Directive, name string) (found []*Directive) {
	for _, d := range list {
		if d.Name == name {
			found = append(found, d)
		}
	}
	return found
}

// File is a file with its text.
type File struct {
	Name string
	Text []byte
}

// Include finds the files that an include of nginx' configuration names; none if they are absent.
type Include func(pattern string) ([]File, error)

// Error says what is wrong with a file.
type Error struct {
	File    string
	Line    int
	Message string
}

func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Message) }

// The bounds of a configuration with the files that it includes.
const (
	maxFiles = 1000
	maxBytes = 4 << 20
	maxDepth = 100
)

// Parse reads a file and what it includes. An include whose files are absent stays a directive.
func Parse(f File, include Include) ([]*Directive, error) {
	p := &parser{include: include}
	return p.file(f)
}

// parser reads the files of one configuration.
type parser struct {
	include Include
	files   int      // read so far
	bytes   int      // in them
	open    []string // the files that include the one that is read, and that one
}

func (p *parser) file(f File) ([]*Directive, error) {
	p.files++
	p.bytes += len(f.Text)
	if p.files > maxFiles || p.bytes > maxBytes {
		return nil, &Error{f.Name, 1, fmt.Sprintf("there are more than %d files or %d bytes: give those with limits",
			maxFiles, maxBytes)}
	}
	p.open = append(p.open, f.Name)
	defer func() { p.open = p.open[:len(p.open)-1] }()
	s := &scanner{file: f.Name, text: string(f.Text), line: 1}
	return p.directives(s, 0)
}

// directives reads up to the end of the block, or of the file.
func (p *parser) directives(s *scanner, depth int) (list []*Directive, err error) {
	for {
		t, err := s.next()
		switch {
		case err != nil:
			return nil, err
		case t.kind == endOfFile && depth > 0:
			return nil, s.error("the file ends within a block: a } is missing")
		case t.kind == endOfBlock && depth == 0:
			return nil, s.error("this } ends no block")
		case t.kind == endOfFile, t.kind == endOfBlock:
			return list, nil
		case t.kind != word:
			return nil, s.error("there is no directive before this " + t.text)
		}
		d, err := p.directive(s, t.text, depth)
		if err != nil {
			return nil, err
		}
		included, err := p.included(d)
		if err != nil {
			return nil, err
		}
		list = append(list, included...)
	}
}

// directive reads what follows the name of a directive.
func (p *parser) directive(s *scanner, name string, depth int) (*Directive, error) {
	d := &Directive{Name: name, File: s.file, Line: s.line}
	for {
		t, err := s.next()
		switch {
		case err != nil:
			return nil, err
		case t.kind == word:
			d.Args = append(d.Args, t.text)
		case t.kind == endOfDirective:
			return d, nil
		case t.kind == beginOfBlock && strings.HasSuffix(name, "_by_lua_block"):
			return d, s.skipLua()
		case t.kind == beginOfBlock && depth >= maxDepth:
			return nil, s.error(fmt.Sprintf("blocks may be %d deep", maxDepth))
		case t.kind == beginOfBlock:
			d.Block, err = p.directives(s, depth+1)
			return d, err
		default:
			return nil, &Error{d.File, d.Line, "the directive " + name + " has no ; at its end"}
		}
	}
}

// included is the directive itself, or what the files have that it includes.
func (p *parser) included(d *Directive) (list []*Directive, err error) {
	if d.Name != "include" || len(d.Args) != 1 || p.include == nil {
		return []*Directive{d}, nil
	}
	files, err := p.include(d.Args[0])
	if err != nil {
		return nil, &Error{d.File, d.Line, err.Error()}
	}
	if len(files) == 0 {
		return []*Directive{d}, nil
	}
	for _, f := range files {
		if slices.Contains(p.open, f.Name) {
			return nil, &Error{d.File, d.Line, f.Name + " includes itself"}
		}
		more, err := p.file(f)
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	return list, nil
}
