// Calls functions that do not check for stack space wherever a stack may be at its end. Says `ready`, and for each line of input what came of a
// round of work.
package main

import (
	"bufio"
	"fmt"
	"os"
	"sync"
)

const goroutines = 50

//go:noinline
//go:nosplit
func Leaf(n int) int {
	return n*3 + 1
}

// As much of a stack as such a function may take, about.
//
//go:noinline
//go:nosplit
func Deep(n int) int {
	var frame [72]int
	frame[n&63] = n
	return Leaf(frame[n&63]) + frame[(n+1)&63]
}

//go:noinline
func Descends(n int) int {
	if n == 0 {
		return 0
	}
	return Descends(n-1) + Deep(n)
}

func work() int {
	var all sync.WaitGroup
	sums := make([]int, goroutines)
	for i := range sums {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			sums[i] = Descends(1000 + i)
		}(i)
	}
	all.Wait()
	sum := 0
	for _, one := range sums {
		sum += one
	}
	return sum
}

func main() {
	fmt.Println("ready")
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		fmt.Println(work())
	}
}
