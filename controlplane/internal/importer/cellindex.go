package importer

import "slices"

// cellIndex finds the cells that may have requests in common with a cell, so
// that thousands of values of one key are not compared with each other.
type cellIndex struct {
	cells  []cell
	values []map[string][]int // for each part the cells with exactly a value
	others [][]int            // and those with another pattern
}

func indexCells(cells []cell) *cellIndex {
	parts := len(cells[0].patterns)
	x := &cellIndex{cells: cells, values: make([]map[string][]int, parts), others: make([][]int, parts)}
	for part := range parts {
		x.values[part] = map[string][]int{}
		for i := range cells {
			if v := cells[i].patterns[part]; v.kind == exactly {
				x.values[part][v.text] = append(x.values[part][v.text], i)
			} else {
				x.others[part] = append(x.others[part], i)
			}
		}
	}
	return x
}

// before lists the cells before one that may be in it, or have requests in
// common with it where the parts that are free do not count.
func (x *cellIndex) before(at int, free []bool) []int {
	var list []int
	narrowed := false
	for part, v := range x.cells[at].patterns {
		if v.kind != exactly || free[part] {
			continue
		}
		same, others := x.values[part][v.text], x.others[part]
		if !narrowed || len(same)+len(others) < len(list) {
			list, narrowed = slices.Concat(same, others), true
		}
	}
	if !narrowed {
		for i := range at {
			list = append(list, i)
		}
		return list
	}
	slices.Sort(list)
	end, _ := slices.BinarySearch(list, at)
	return list[:end]
}
