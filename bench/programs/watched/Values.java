import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;

/** Reads a key from each line and prints the length of its value; makes garbage, as servers do. */
class Values {
  public static void main(String[] words) throws Exception {
    Map<Integer, byte[]> values = new HashMap<>();
    for (int n = 0; n < Integer.parseInt(words[0]); n++) values.put(n, ("v" + n).repeat(500 / 5).getBytes());
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      System.out.println(values.get(Integer.parseInt(line)).clone().length);
      System.out.flush();
    }
  }
}
