// Command plot draws the distributions of write gaps that `go run ./benchmarks failures -csv` has measured: for each
// kind of failure and size of cluster one diagram, with the part of the rounds whose gap was at most so long.
//
//	plot -in failures.csv -out failures.svg
package main

import (
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"image/color"
	"io"
	"os"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

func main() {
	in := flag.String("in", "", "the CSV file")
	out := flag.String("out", "", "the SVG file to write")
	flag.Parse()
	if err := run(*in, *out); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

func run(in, out string) error {
	f, err := os.Open(in)
	if err != nil {
		return err
	}
	defer f.Close()
	panels, err := read(f)
	if err != nil {
		return fmt.Errorf("%s: %w", in, err)
	}
	w, err := os.Create(out)
	if err != nil {
		return err
	}
	return errors.Join(render(panels, w), w.Close())
}

// panel is one diagram.
type panel struct {
	title   string
	systems []system
}

// system is one line of a diagram.
type system struct {
	name string
	gaps []float64 // in ms
}

// read groups the rows of a CSV file, in their order.
func read(r io.Reader) (panels []panel, err error) {
	rows, err := csv.NewReader(r).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(rows) < 2 || len(rows[0]) < 5 || rows[0][0] != "failure" || rows[0][4] != "gap_ms" {
		return nil, errors.New("not the rows of failures, or none")
	}
	for _, row := range rows[1:] {
		gap, err := strconv.ParseFloat(row[4], 64)
		if err != nil {
			return nil, err
		}
		title, name := row[0]+", "+row[1]+" nodes", row[2]
		i := slices.IndexFunc(panels, func(p panel) bool { return p.title == title })
		if i < 0 {
			i, panels = len(panels), append(panels, panel{title: title})
		}
		p := &panels[i]
		j := slices.IndexFunc(p.systems, func(s system) bool { return s.name == name })
		if j < 0 {
			j, p.systems = len(p.systems), append(p.systems, system{name: name})
		}
		p.systems[j].gaps = append(p.systems[j].gaps, gap)
	}
	return panels, nil
}

// Of the picture.
const (
	columns     = 3
	panelWidth  = 10 * vg.Centimeter
	panelHeight = 7 * vg.Centimeter
	legendLine  = 6 * vg.Millimeter
	least, most = 1, 20_000 // ms
)

// hues tell systems apart also for most people who are colour-blind (Okabe and Ito).
var hues = []color.RGBA{
	{0x00, 0x72, 0xb2, 0xff},
	{0x00, 0x9e, 0x73, 0xff},
	{0x56, 0xb4, 0xe9, 0xff},
	{0xd5, 0x5e, 0x00, 0xff},
	{0xe6, 0x9f, 0x00, 0xff},
	{0x55, 0x55, 0x55, 0xff},
}

// render draws all diagrams into one picture, with one legend below them.
func render(panels []panel, w io.Writer) error {
	rows := (len(panels) + columns - 1) / columns
	names := systems(panels)
	legendHeight := vg.Length(len(names)+1) * legendLine
	canvas := vgsvg.New(columns*panelWidth, vg.Length(rows)*panelHeight+legendHeight)
	white := draw.New(canvas)
	white.SetColor(color.White)
	white.Fill(white.Rectangle.Path())
	tiles := draw.Tiles{
		Rows: rows, Cols: columns, PadX: 4 * vg.Millimeter, PadY: 4 * vg.Millimeter, PadTop: 4 * vg.Millimeter,
		PadRight: 4 * vg.Millimeter,
	}
	above := draw.Crop(white, 0, 0, legendHeight, 0)
	for i, p := range panels {
		drawn, err := diagram(p, names)
		if err != nil {
			return err
		}
		drawn.Draw(tiles.At(above, i%columns, i/columns))
	}
	legend := plot.NewLegend()
	legend.Left, legend.Top, legend.XOffs = true, true, 1*vg.Centimeter
	for i, name := range names {
		legend.Add(name, &plotter.Line{LineStyle: lineOf(i)})
	}
	legend.Draw(draw.Crop(white, 0, 0, 0, -vg.Length(rows)*panelHeight))
	_, err := canvas.WriteTo(w)
	return err
}

// systems returns the names of all systems, in their order.
func systems(panels []panel) (names []string) {
	for _, p := range panels {
		for _, s := range p.systems {
			if !slices.Contains(names, s.name) {
				names = append(names, s.name)
			}
		}
	}
	return names
}

func lineOf(system int) draw.LineStyle {
	return draw.LineStyle{Color: hues[system%len(hues)], Width: vg.Points(1.3)}
}

// rounds returns how many rounds the systems have: "25 to 300" when not all have as many.
func (p panel) rounds() string {
	fewest, most := len(p.systems[0].gaps), 0
	for _, s := range p.systems {
		fewest, most = min(fewest, len(s.gaps)), max(most, len(s.gaps))
	}
	if fewest == most {
		return strconv.Itoa(most)
	}
	return fmt.Sprintf("%d to %d", fewest, most)
}

// diagram is the share of the rounds by the longest gap, on a logarithmic scale.
func diagram(p panel, names []string) (*plot.Plot, error) {
	d := plot.New()
	d.Title.Text = fmt.Sprintf("%s, %s rounds", p.title, p.rounds())
	d.X.Label.Text, d.Y.Label.Text = "write gap, ms", "part of the rounds"
	d.X.Scale, d.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	d.X.Min, d.X.Max, d.Y.Min, d.Y.Max = least, most, 0, 1
	d.Add(plotter.NewGrid())
	for _, s := range p.systems {
		line, err := plotter.NewLine(cumulative(s.gaps))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		line.StepStyle, line.LineStyle = plotter.PostStep, lineOf(slices.Index(names, s.name))
		d.Add(line)
	}
	return d, nil
}

// cumulative returns the points of the empirical distribution of gaps.
func cumulative(gaps []float64) plotter.XYs {
	sorted := slices.Sorted(slices.Values(gaps))
	points := plotter.XYs{{X: max(least, min(most, sorted[0])), Y: 0}}
	for i, g := range sorted {
		points = append(points, plotter.XY{X: max(least, min(most, g)), Y: float64(i+1) / float64(len(sorted))})
	}
	return points
}
