package source

import (
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
)

// Place is where something stands: a file, and a path or a line in it. In a file of Envoy paths start at the listener
// or at the routes: see readListener in package envoyfile.
type Place struct {
	File, Path string
	Line       int // 0 = unknown
}

// In is the place of a field of the object at this place. It has no line: that was the object's.
func (p Place) In(name string) Place {
	return Place{File: p.File, Path: strings.Trim(p.Path+"."+name, ".")}
}

// Item is the place of an item of a field that is a list, in the object at this place.
func (p Place) Item(name string, i int) Place { return p.In(name).At(i) }

// At is the place of an item of the list at this place.
func (p Place) At(i int) Place {
	p.Path += "[" + strconv.Itoa(i) + "]"
	return p
}

// Problem is what is wrong at the place.
func (p Place) Problem(text string) policyfile.Problem {
	return policyfile.Problem{File: p.File, Line: p.Line, Path: p.Path, Message: text}
}

// String is FILE:LINE:PATH. Two places that differ have different texts.
func (p Place) String() string { return p.File + ":" + strconv.Itoa(p.Line) + ":" + p.Path }
