import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

/** Objects [ROUNDS]: allocates, sorts and hashes strings, most of which soon become garbage. */
class Objects {
  public static void main(String[] words) throws Exception {
    Random draw = new Random(1);
    MessageDigest whole = MessageDigest.getInstance("SHA-256");
    Map<Integer, List<String>> kept = new HashMap<>();
    int rounds = words.length > 0 ? Integer.parseInt(words[0]) : 6;
    for (int round = 0; round < rounds; round++) {
      for (int number = 0; number < 60000; number++) {
        String text = Long.toString(draw.nextLong(), 36) + number;
        List<String> list = kept.computeIfAbsent(number % 5000, key -> new ArrayList<>());
        list.add(text);
        if (list.size() > 40) list.subList(0, 20).clear();
      }
      List<String> all = new ArrayList<>();
      for (List<String> list : kept.values()) all.addAll(list);
      all.sort(null);
      for (String text : all) whole.update(text.getBytes());
      System.gc();
    }
    StringBuilder digest = new StringBuilder();
    for (byte part : whole.digest()) digest.append(String.format("%02x", part));
    System.out.println(digest);
  }
}
