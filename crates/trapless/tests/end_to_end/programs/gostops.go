// Goroutines that are stopped for garbage collection again and again, at whatever instruction they are. Says `ready`, and for each line of input what
// came of a round of work.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
)

type node struct {
	next *node
}

// A loop behind the first instruction: two bytes are all that a probe finds there, and it is the last function of its file.
//
//go:noinline
func Last(from *node) *node {
	for from.next != nil {
		from = from.next
	}
	return from
}

// Reads flags that another instruction has set.
//
//go:noinline
func Compares(x, y, n int) (sum int) {
	for i := 0; i < n; i++ {
		if x+i == y+i {
			sum++
		}
		if x-i == y-i {
			sum++
		}
		if x^i == y^i {
			sum++
		}
	}
	return sum
}

// Collects garbage while two others work, and says whether all that they did was right.
func round(work func() bool) bool {
	var ends, wrong int32
	done := make(chan bool)
	for i := 0; i < 2; i++ {
		go func() {
			for atomic.LoadInt32(&ends) == 0 {
				if !work() {
					atomic.AddInt32(&wrong, 1)
				}
			}
			done <- true
		}()
	}
	for i := 0; i < 15; i++ {
		runtime.GC()
	}
	atomic.StoreInt32(&ends, 1)
	<-done
	<-done
	return wrong == 0
}

func main() {
	list := &node{nil}
	last := func() bool {
		right := true
		for i := 0; i < 100000; i++ {
			right = right && Last(list) == list
		}
		return right
	}
	compares := func() bool { return Compares(7, 7, 1000000) == 3*1000000 }
	input := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for input.Scan() {
		fmt.Println(round(last), round(compares))
	}
}
