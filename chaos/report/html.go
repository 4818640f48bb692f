package report

import (
	"cmp"
	_ "embed" // the page
	"errors"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"slices"
	"time"
)

//go:embed page.html
var source string

var page = template.Must(template.New("page").Parse(source))

// Sizes of the drawing, in its own units.
const (
	left   = 90   // of the names of the lanes
	width  = 1500 // of the time
	header = 24   // of the scale of time
	bar    = 22   // height of a leadership
	thin   = 7    // height of a fault
	space  = 10
)

// drawing is a Report as boxes.
type drawing struct {
	Report
	Width, Height int
	Lanes         []lane
	Ticks         []tick
	Boxes         []box
}

type lane struct {
	Name   string
	Y, End int
}

type tick struct {
	X    float64
	Text string
}

// box is one thing in a lane. Class says what, Text is shown when it is pointed at, Label stands in it.
type box struct {
	X, W              float64
	Y, H              int
	Class, Text, Tint string
	Label             string
}

// Save writes the report as a page that needs nothing but itself into a directory, which is made, and returns its path.
func (r Report) Save(dir, name string) (path string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path = filepath.Join(dir, name+".html")
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	return path, errors.Join(page.Execute(f, r.draw()), f.Close())
}

func (r Report) draw() drawing {
	end := r.end()
	d := drawing{Report: r, Width: left + width + space}
	x := func(at time.Duration) float64 { return left + width*float64(at)/float64(end) }
	y := header
	draw := func(b box, from, to time.Duration) {
		b.X, b.W, b.Y = x(from), max(2, x(to)-x(from)), y+b.Y
		d.Boxes = append(d.Boxes, b)
	}
	for _, node := range append([]string{""}, r.Nodes...) {
		top := y
		if node != "" {
			for _, g := range r.Leaderships {
				if g.Node == node {
					draw(box{
						H: bar, Class: "leadership", Tint: tint(g.Term), Label: fmt.Sprint(g.Term),
						Text: fmt.Sprintf("%s leads term %d, %v to %v", node, g.Term, g.From, g.To),
					}, g.From, g.To)
				}
			}
			y += bar + 2
		}
		var rows []time.Duration // until when each is taken: as few as there is room in
		for _, f := range r.Faults {
			if f.Node != node {
				continue
			}
			row := slices.IndexFunc(rows, func(until time.Duration) bool { return until <= f.From })
			if row < 0 {
				row, rows = len(rows), append(rows, 0)
			}
			rows[row] = f.To
			draw(box{Y: row * (thin + 2), H: thin, Class: "fault", Text: f.What}, f.From, f.To)
		}
		y += max(1, len(rows))*(thin+2) + space
		d.Lanes = append(d.Lanes, lane{Name: cmp.Or(node, "all nodes"), Y: top, End: y - space/2})
	}
	d.Lanes = append(d.Lanes, lane{Name: "no writes", Y: y, End: y + bar + space/2})
	for _, g := range r.Gaps {
		draw(box{
			H: bar, Class: "gap", Text: fmt.Sprintf("no write acknowledged for %v, from %v", g.To-g.From, g.From),
		}, g.From, g.To)
	}
	y += bar + space
	top := y
	for _, o := range r.Ops {
		draw(box{H: thin, Class: "op", Text: o.What}, o.From, o.To)
		y += thin + 2
	}
	if len(r.Ops) > 0 {
		d.Lanes = append(d.Lanes, lane{Name: "violated by", Y: top, End: y + space/2})
	}
	d.Height = y + space
	for _, at := range ticks(end) {
		d.Ticks = append(d.Ticks, tick{X: x(at), Text: at.String()})
	}
	return d
}

func (r Report) end() time.Duration {
	end := max(r.Length, time.Millisecond)
	for _, g := range r.Leaderships {
		end = max(end, g.To)
	}
	for _, f := range r.Faults {
		end = max(end, f.To)
	}
	for _, o := range r.Ops {
		end = max(end, o.To)
	}
	return end
}

// tint is a colour for a term: neighbours differ.
func tint(term uint64) string { return fmt.Sprintf("hsl(%d 55%% 62%%)", term*67%360) }

// ticks divides a time into about ten parts.
func ticks(end time.Duration) (all []time.Duration) {
	step := time.Millisecond
	for i := 0; end/step > 12; i++ {
		step *= time.Duration([]int{2, 5}[i%2]) // 2, 10, 20, 100 …
	}
	for at := time.Duration(0); at <= end; at += step {
		all = append(all, at)
	}
	return all
}
