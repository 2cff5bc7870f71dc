// Package apportion divides a whole number in proportion to shares.
//
//	apportion.go     the method of largest remainders, with bounds for each part
package apportion

import (
	"cmp"
	"slices"
)

// Part is one of the parts into which a total is divided.
type Part struct {
	Share int64
	// Low and High are the least and the greatest number that the part may get.
	Low, High int
	// Gets is the number that the part gets. Divide sets it.
	Gets int
}

// Divide divides a total in proportion to the shares by the method of largest remainders:
// a part gets its quota, rounded down or up. If remainders are equal, the earlier part is
// rounded up. A part gets no less than Low and no more than High, and the other parts
// share the rest in proportion. The total must be at least the sum of all Low. If it is
// more than the sum of all High, each part gets High. The product of the total and the sum
// of the shares must be less than 2^63. Divide lowers High to the total.
func Divide(parts []Part, total int) {
	open := make([]int, 0, len(parts))
	for i := range parts {
		parts[i].Gets, parts[i].High = 0, min(parts[i].High, total)
		open = append(open, i)
	}
	var sum int64
	for {
		sum = 0
		for _, i := range open {
			sum += parts[i].Share
		}
		var under, over int64 // by how much quotas are below Low and above High, times sum
		for _, i := range open {
			s, quota := parts[i], int64(total)*parts[i].Share
			under += max(0, int64(s.Low)*sum-quota)
			over += max(0, quota-int64(s.High)*sum)
		}
		if under == 0 && over == 0 {
			break
		}
		left := total
		open = slices.DeleteFunc(open, func(i int) bool {
			s, quota := &parts[i], int64(total)*parts[i].Share
			switch {
			case under >= over && quota < int64(s.Low)*sum:
				s.Gets = s.Low
			case over >= under && quota > int64(s.High)*sum:
				s.Gets = s.High
			default:
				return false
			}
			left -= s.Gets
			return true
		})
		total = left
	}
	left := total
	for _, i := range open {
		parts[i].Gets = int(int64(total) * parts[i].Share / sum)
		left -= parts[i].Gets
	}
	slices.SortStableFunc(open, func(a, b int) int {
		return cmp.Compare(int64(total)*parts[b].Share%sum, int64(total)*parts[a].Share%sum)
	})
	for _, i := range open[:max(0, min(left, len(open)))] {
		parts[i].Gets++
	}
}
